"""The calls of one step of the KV cache engine, and what came out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.base import Batch
from mstar_core.engines.page_work import Work
from mstar_core.engines.residents import Entry
from mstar_core.engines.step import Mark, StepPlan


class KVBatch(Batch):
    """The calls of one step: entries that run, in the order of their rows, then those that failed or do nothing.

    `work` is what the device does to pages and histories before the step; `host` holds the outputs that the node's
    `finish` wants to see.
    """

    __slots__ = ("entries", "host", "marks", "padding", "plan", "ran", "work")

    def __init__(self, walk: str, running: Sequence[Entry], settled: Sequence[Entry]) -> None:
        self.entries = [*running, *settled]
        super().__init__(walk, [entry.call for entry in self.entries])
        self.ran = len(running)
        self.partial = bool(settled) or not all(entry.final for entry in running)
        self.work: list[Work] = []
        self.plan: StepPlan | None = None
        self.padding = 0
        self.marks: list[Mark] = []
        self.host: dict[str, Sequence[Any]] = {}

    @property
    def running(self) -> list[Entry]:
        """The entries that the step computes."""
        return self.entries[: self.ran]

    def fill(self, outputs: dict[str, Any], host_outputs: Sequence[str]) -> None:
        """Take in what the step gave; copy `host_outputs` to the host."""
        self._join(outputs)
        self.output.tensors.update(outputs)
        self.host = {name: _on_host(outputs[name]) for name in host_outputs if name in outputs}

    def seen(self, index: int) -> Mapping[str, Any]:
        """The host outputs of one entry that ran."""
        return {name: values[index] for name, values in self.host.items()}

    def _join(self, outputs: dict[str, Any]) -> None:
        """Keep the ragged outputs of prefills that go on, and put those of finished ones together."""
        ragged = {name: value for name, value in outputs.items() if isinstance(value, list)}
        for index, entry in enumerate(self.running if ragged else ()):
            pieces = entry.resident.pieces.get(entry.call, [])
            if not entry.final:
                pieces = entry.resident.pieces.setdefault(entry.call, pieces)
                pieces.append({name: value[index] for name, value in ragged.items()})
            elif entry.done:
                for name, value in ragged.items():
                    value[index] = torch.cat([*(piece[name] for piece in pieces), value[index]])


def _on_host(values: torch.Tensor | list[torch.Tensor]) -> Sequence[Any]:
    """One host value per row: numbers from a one-dimensional tensor, else tensors."""
    if isinstance(values, list):
        return [value.cpu() for value in values]
    host = values.cpu()
    rows: Sequence[Any] = host.tolist() if host.dim() == 1 else list(host)
    return rows
