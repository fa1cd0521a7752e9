"""The histories behind repetition penalties: a row per request in each sampler's table, changed as page work is.

The row of a request without a penalty means nothing, whatever steps that it shares with others wrote there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch

from mstar_core.engines.page_work import PageWork
from mstar_core.engines.residents import Entry, Resident
from mstar_core.engines.sampling import Sampler
from mstar_core.engines.step import Mark


class Histories:
    """Queues what is to happen to histories; the device thread does it, in order, with the next batch."""

    def __init__(self, samplers: Mapping[str, Sampler], work: PageWork) -> None:
        self._samplers = samplers
        self._work = work

    def make_room(self, slots: int) -> None:
        """Let every table have a row for each of `slots` requests."""
        for sampler in self._samplers.values():
            if sampler.spec.penalises and slots > sampler.slots:
                sampler.slots = 2 * slots
                self._work.then(sampler.grow)

    def forget(self, resident: Resident) -> None:
        """Clear a request's histories."""
        for _, sampler in self._used(resident):
            self._work.then(partial(sampler.forget, resident.slot))

    def take_back(self, mark: Mark, entries: Sequence[Entry], index: int) -> None:
        """Remove what entry `index` of a step added to a history."""
        first = sum(entry.tokens for entry in entries[:index]) if mark.by_token else index
        stop = first + (entries[index].tokens if mark.by_token else 1)
        slots, ids, weights = mark.slots[first:stop], mark.ids[first:stop], -mark.weights[first:stop]
        self._work.then(partial(self._samplers[mark.sampler].count, slots, ids, weights))

    def save(self, resident: Resident, tensors: dict[str, torch.Tensor]) -> None:
        """Copy a request's histories to `tensors` on the host, each `[1, vocab]` int32."""

        def work() -> None:
            row = slice(resident.slot, resident.slot + 1)
            for name, sampler in self._used(resident):
                tensors[_tensor_name(name)] = sampler.history[row].to("cpu", copy=True)

        self._work.then(work)

    def load(self, resident: Resident, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace a request's histories by what `save` gave."""

        def work() -> None:
            for name, sampler in self._used(resident):
                sampler.history[resident.slot].copy_(tensors[_tensor_name(name)][0])

        self._work.then(work)

    def _used(self, resident: Resident) -> Iterator[tuple[str, Sampler]]:
        """The samplers that this request has a history in."""
        for name, sampler in self._samplers.items():
            if resident.settings[name].penalty != 1.0:
                yield name, sampler


def _tensor_name(sampler: str) -> str:
    return f"history {sampler}"
