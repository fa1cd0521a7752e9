"""The counting model's engine: one addition per run, on values that stay in the batch's output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.base import (
    Batch,
    BatchLimits,
    Call,
    Engine,
    EngineSettings,
    Handover,
    Leaving,
    NodeContext,
    NodeRequest,
    Outputs,
    Row,
)
from mstar_core.testing.counting import RECORD


def make_node(context: NodeContext) -> None:
    """The engine needs no node object."""


class CountingEngine(Engine):
    """Adds 1 to every call's value; rows of one batch may feed the next."""

    run_ahead = frozenset({"value"})

    def __init__(self) -> None:
        self._dropped: set[Call] = set()

    @classmethod
    def build(cls, node: None, context: NodeContext, settings: EngineSettings) -> CountingEngine:
        """Nothing is allocated."""
        return cls()

    def open(self, request: NodeRequest) -> None:
        """Nothing is held."""

    def close(self, request: NodeRequest) -> None:
        """Nothing is held."""

    def collect(self, walk: str, calls: Sequence[Call], limits: BatchLimits) -> Batch | None:
        """As many as the limits allow."""
        return Batch(walk, calls[: limits.requests])

    def run(self, batch: Batch) -> None:
        """Compute, unless a call has reached the value at which it is to fail."""
        if isinstance(batch, Leaving):
            return
        values = torch.stack([_value(call.inputs["value"]) for call in batch.calls])  # [calls]
        limits = torch.tensor([call.request.params["fail_at"] for call in batch.calls])  # [calls]
        if bool((values >= limits).any()):
            raise RuntimeError("told to fail")
        batch.output.tensors["value"] = values + 1

    def finish(self, batch: Batch) -> list[Outputs]:
        """A row each, and whether the count has come far enough."""
        outcomes: list[Outputs] = [self._outcome(batch, index, call) for index, call in enumerate(batch.calls)]
        self._dropped.difference_update(batch.calls)
        return outcomes

    def drop(self, batch: Batch, call: Call) -> None:
        """The call had no effect."""
        RECORD.dropped += 1
        self._dropped.add(call)

    def leave(self, request: NodeRequest) -> Leaving:
        """Nothing is held."""
        return Leaving(Handover(None))

    def enter(self, request: NodeRequest, handover: Handover) -> None:
        """Nothing is held."""

    def _outcome(self, batch: Batch, index: int, call: Call) -> Mapping[str, Any] | None:
        if call in self._dropped:
            return None
        value = int(batch.output.tensors["value"][index])
        RECORD.values.setdefault(call.request.seed, []).append(value)
        return {"value": Row(batch.output, "value", index), "stop": value >= call.request.params["stop_at"]}


def _value(value: Any) -> torch.Tensor:
    return value.tensor() if isinstance(value, Row) else torch.as_tensor(value)
