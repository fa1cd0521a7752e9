"""From the entries of a batch to the numbers of its step: layout, positions, attention plan, sampler rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from mstar_core.engines.attention.base import AttentionBackend, Span
from mstar_core.engines.kv_node import KVNode
from mstar_core.engines.pages import NULL_PAGE
from mstar_core.engines.reservations import Piece
from mstar_core.engines.residents import Entry
from mstar_core.engines.sampling import PADDING_SLOT, UNMASKED, Sampler, SamplerRow, SamplerRows, SamplerSettings
from mstar_core.engines.step import StepPlan

_GREEDY = SamplerSettings(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, penalty=1.0)
_NULL_TABLE = np.full(1, NULL_PAGE, np.int64)


class StepPlanner:
    """Makes the `StepPlan`s of one node, on the loop thread."""

    def __init__(
        self, node: KVNode, backend: AttentionBackend, samplers: Mapping[str, Sampler], device: torch.device
    ) -> None:
        self._node = node
        self._backend = backend
        self._samplers = samplers
        self._device = device
        self._position_dtype = np.dtype(str(node.position_dtype).removeprefix("torch."))

    def plan(self, entries: Sequence[Entry], padding: int = 0) -> StepPlan:
        """The plan of a step that runs `entries`, followed by `padding` rows of one token on the null page."""
        pieces = [piece for entry in entries for piece in _pieces(entry)]
        counts = [entry.tokens for entry in entries] + [1] * padding
        single = all(count == 1 for count in counts)
        ends = np.cumsum(counts)
        return StepPlan(
            counts=counts,
            positions=self._tensor(self._positions(pieces, padding)),
            last=None if single else self._tensor(ends - 1),
            row_of=None if single else self._tensor(np.repeat(np.arange(len(counts)), counts)),
            attention=self._backend.plan(_spans(pieces, padding)),
            samplers=self._sampler_rows(entries, padding),
        )

    def _positions(self, pieces: Sequence[Piece], padding: int) -> npt.NDArray[np.generic]:
        """`[tokens]` or `[axes, tokens]`; positions that come without axes are the same on all."""
        axes = self._node.position_axes
        ids = [*(piece.positions for piece in pieces), *([np.zeros(padding)] if padding else [])]
        if axes:
            ids = [np.broadcast_to(each, (axes, each.shape[-1])) for each in ids]
        return np.concatenate(ids, axis=-1).astype(self._position_dtype)

    def _sampler_rows(self, entries: Sequence[Entry], padding: int) -> dict[str, SamplerRows]:
        if not self._samplers:
            return {}
        phases = [self._node.phases(entry.call) for entry in entries]
        return {
            name: sampler.rows(
                [_row(entry, name, phase) for entry, phase in zip(entries, phases, strict=True)]
                + [SamplerRow(_GREEDY, 0, 0, PADDING_SLOT, UNMASKED, False)] * padding
            )
            for name, sampler in self._samplers.items()
        }

    def _tensor(self, numbers: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._device)


def _pieces(entry: Entry) -> Sequence[Piece]:
    assert entry.reservation is not None
    return entry.reservation.pieces


def _spans(pieces: Sequence[Piece], padding: int) -> list[Span]:
    """The attention spans of a step, its tokens numbered from 0."""
    spans: list[Span] = []
    start = 0
    for piece in pieces:
        spans.append(Span(start, start + piece.tokens, piece.pages, piece.cached, piece.causal, piece.decode))
        start += piece.tokens
    padded = [Span(start + row, start + row + 1, _NULL_TABLE, 0, True, True) for row in range(padding)]
    return spans + padded


def _row(entry: Entry, name: str, phases: Mapping[str, int]) -> SamplerRow:
    resident = entry.resident
    return SamplerRow(
        settings=resident.settings[name],
        seed=resident.request.seed,
        step=entry.call.step,
        slot=resident.slot,
        phase=phases.get(name, UNMASKED),
        counts=entry.final,
    )
