"""The scripted model's nodes."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.base import Call, Chunk, NodeContext
from mstar_core.engines.stateless import StatelessNode
from mstar_core.testing.scripted import ITEM_SAMPLES, sample_of


class _Scripted(StatelessNode):
    """Raises where the request says so."""

    def __init__(self, context: NodeContext) -> None:
        self.name = context.node.name

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """Every call's outputs, unless one of them is to fail."""
        for call in calls:
            params = call.request.params
            if params["fail"] == self.name and params["fail_at"] == call.step:
                raise RuntimeError(f"{self.name} was told to fail")
        return [self._one(call) for call in calls]

    @abstractmethod
    def _one(self, call: Call) -> Mapping[str, Any]:
        """The outputs of one call."""


class Reader(_Scripted):
    """Reads the prompt; its answer is at its end at once when the request asks for no items."""

    def _one(self, call: Call) -> Mapping[str, Any]:
        return {"item": torch.tensor(0), "stop": call.request.params["items"] == 0}


class Writer(_Scripted):
    """One item a run, after the request's delay; the run that finds the answer complete makes none and stops."""

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """One item each, after the longest delay asked for."""
        time.sleep(max(call.request.params["delay_ms"] for call in calls) / 1000)
        return super().forward(calls)

    def _one(self, call: Call) -> Mapping[str, Any]:
        params, step = call.request.params, int(call.inputs["last"])
        if step >= params["items"]:
            return {"item": call.inputs["last"], "stop": True}
        value = sample_of(params["code"], call.request.seed, step, high=params["voice"] == "high")
        return {"item": torch.tensor(step + 1), "sound": torch.tensor(value), "stop": False}


class Speaker(_Scripted):
    """Items to samples."""

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """Samples for each, after the longest delay asked for."""
        time.sleep(max(call.request.params["slow_speaker_ms"] for call in calls) / 1000)
        return super().forward(calls)

    def _one(self, call: Call) -> Mapping[str, Any]:
        chunk: Chunk = call.inputs["sounds"]
        if not chunk.items:
            return {}
        return {"audio": torch.stack(chunk.items).repeat_interleave(ITEM_SAMPLES)}


class Counter(_Scripted):
    """Counts its runs from 1."""

    def _one(self, call: Call) -> Mapping[str, Any]:
        last = call.inputs["count"]
        return {"count": torch.tensor(1) if last is None else last + 1}
