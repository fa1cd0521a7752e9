"""What a KV node's `forward` gets: one step of a batch, its tokens laid out one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch

from mstar_core.engines.attention.base import AttentionBackend, AttentionPlan
from mstar_core.engines.base import Call, Row
from mstar_core.engines.sampling import Sampler, SamplerRows
from mstar_core.engines.segments import Part
from mstar_core.engines.values import stacked, tensor_of

Per = Literal["call", "segment"]


@dataclass(slots=True)
class StepPlan:
    """A step in numbers: made on the loop thread, complete before the step runs.

    A padded step has more rows and tokens than its calls account for; padding follows what is real.
    """

    counts: list[int]  # tokens of each row
    positions: torch.Tensor  # [tokens] or [axes, tokens]
    last: torch.Tensor | None  # [rows] int64: each row's last token; None when every row has one token
    row_of: torch.Tensor | None  # [tokens] int64: each token's row; None when every row has one token
    attention: AttentionPlan
    samplers: dict[str, SamplerRows]

    def clone(self) -> StepPlan:
        """The same plan with positions and sampler rows in memory of their own."""
        samplers = {name: rows.clone() for name, rows in self.samplers.items()}
        return replace(self, positions=self.positions.clone(), samplers=samplers)


@dataclass(slots=True)
class Mark:
    """Ids that a step added to a sampler's history, so that they can be taken back."""

    sampler: str
    slots: torch.Tensor  # [entries] int64
    ids: torch.Tensor  # [entries] int64
    weights: torch.Tensor  # [entries] int32
    by_token: bool  # one entry per token of the step, else one per row

    def clone(self) -> Mark:
        """The same mark in memory of its own."""
        return Mark(self.sampler, self.slots.clone(), self.ids.clone(), self.weights.clone(), self.by_token)


class StepInputs(Protocol):
    """Where a step's input tensors come from."""

    def tokens(self, port: str, per: Per) -> torch.Tensor:
        """`[tokens, ...]`."""

    def rows(self, port: str) -> torch.Tensor:
        """`[rows, ...]`."""


@dataclass(slots=True)
class Step:
    """One step of a batch of calls, for `KVNode.forward`.

    A *row* is a call (or padding), a *token* one of the new tokens of its segments. `calls` and `parts` are there for
    nodes that have to look at single calls; a node that only uses tensors can be captured and compiled.
    """

    plan: StepPlan
    inputs: StepInputs
    backend: AttentionBackend
    sampler_of: Mapping[str, Sampler]
    calls: Sequence[Call] = ()
    parts: Sequence[Sequence[Part]] = ()
    marks: list[Mark] = field(default_factory=list)

    @property
    def positions(self) -> torch.Tensor:
        """Position ids, `[tokens]`, or `[axes, tokens]` for a node with several position axes."""
        return self.plan.positions

    def tokens(self, port: str, per: Per = "call") -> torch.Tensor:
        """An input with a token axis, `[tokens, ...]`: what each call gives to this step's tokens, one after the other.

        A port declared with `tokens=axis` is cut along that axis where the prefill is cut; a value without that axis
        is one token. A call's value covers its segments in order; with `per="segment"` it is as long as each of the
        call's segments, and repeated for each.
        """
        return self.inputs.tokens(port, per)

    def rows(self, port: str) -> torch.Tensor:
        """An input that every call brings once, `[rows, ...]`."""
        return self.inputs.rows(port)

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None = None
    ) -> torch.Tensor:
        """Cache the new keys and values `[tokens, kv_heads, head_dim]`, and attend with `queries` `[tokens, heads,
        head_dim]`. Once per layer and step."""
        return self.backend.run(layer, queries, keys, values, self.plan.attention, scale=scale)

    def last(self, values: torch.Tensor) -> torch.Tensor:
        """The last token of each row, `[rows, ...]`, of values `[tokens, ...]`."""
        return values if self.plan.last is None else values.index_select(0, self.plan.last)

    def expand(self, rows: torch.Tensor) -> torch.Tensor:
        """Each row's value for each of its tokens, `[tokens, ...]`, from `[rows, ...]`."""
        return rows if self.plan.row_of is None else rows.index_select(0, self.plan.row_of)

    def split(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Values `[tokens, ...]` as one tensor per row. An output made of them is put together again over the steps of
        a prefill that was cut."""
        return list(torch.split(values, self.plan.counts))

    def sample(self, logits: torch.Tensor, sampler: str, draw: int = 0) -> torch.Tensor:
        """Token ids `[rows]` int64 for logits `[rows, vocab]` by one of the node's samplers.

        `draw` numbers the uses of a sampler within a step.
        """
        by, rows = self.sampler_of[sampler], self.plan.samplers[sampler]
        ids = by.sample(logits, rows, draw)
        if rows.features.penalty:
            self._mark(Mark(sampler, rows.slots, ids, rows.weights, by_token=False))
        return ids

    def remember(self, sampler: str, ids: torch.Tensor) -> None:
        """Count ids `[tokens]` as history of a sampler (the engine does it for the port that the sampler names)."""
        rows = self.plan.samplers[sampler]
        slots = self.expand(rows.slots)
        self._mark(Mark(sampler, slots, ids, torch.ones_like(slots, dtype=torch.int32), by_token=True))

    def _mark(self, mark: Mark) -> None:
        self.sampler_of[mark.sampler].count(mark.slots, mark.ids, mark.weights)
        self.marks.append(mark)


@dataclass(slots=True)
class CallInputs:
    """Inputs put together from the calls themselves. `axes` holds the token axis of every port that has one."""

    values: Sequence[Mapping[str, Any]]
    parts: Sequence[Sequence[Part]]
    done: Sequence[int]  # tokens of each call that earlier steps ran
    axes: Mapping[str, int]
    device: torch.device

    def rows(self, port: str) -> torch.Tensor:
        """`[calls, ...]`."""
        return stacked([_given(values, port) for values in self.values], self.device)

    def tokens(self, port: str, per: Per) -> torch.Tensor:
        """`[tokens, ...]`."""
        if port not in self.axes:
            return self._single(port, self.rows(port))
        if self._scalar_rows(port):
            return self._single(port, self.rows(port))
        pieces = []
        for values, parts, done in zip(self.values, self.parts, self.done, strict=True):
            value = tensor_of(_given(values, port), self.device)
            if value.dim() == 0:
                value = value.unsqueeze(0)
            value = value.movedim(self.axes[port], 0)
            if per == "segment":
                pieces += [value[part.start : part.stop] for part in parts]
            else:
                pieces.append(value[done : done + _tokens(parts)])
        self._check(port, pieces)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _scalar_rows(self, port: str) -> bool:
        """Whether every call brings one number that an earlier batch computed, as in a decode loop."""
        return all(isinstance(row := values.get(port), Row) and row.tensor().dim() == 0 for values in self.values)

    def _single(self, port: str, rows: torch.Tensor) -> torch.Tensor:
        if any(_tokens(parts) != 1 for parts in self.parts):
            counts = [_tokens(parts) for parts in self.parts]
            raise ValueError(
                f"port {port!r} has no token axis, so it is one token per call, but the calls run {counts}"
            )
        return rows

    def _check(self, port: str, pieces: Sequence[torch.Tensor]) -> None:
        got, wanted = sum(piece.shape[0] for piece in pieces), sum(_tokens(parts) for parts in self.parts)
        if got != wanted:
            raise ValueError(f"port {port!r} gives {got} tokens to a step of {wanted}; segments and input disagree")


def _tokens(parts: Sequence[Part]) -> int:
    return sum(part.tokens for part in parts)


def _given(values: Mapping[str, Any], port: str) -> Any:
    value = values.get(port)
    if value is None:
        raise ValueError(f"input {port!r} is not connected in this walk")
    return value
