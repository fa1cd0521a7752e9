"""The toy world's nodes."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.base import Call, NodeContext
from mstar_core.engines.stateless import StatelessNode
from mstar_core.testing.toy_world import COMPONENTS


class _Toy(StatelessNode):
    """A node that looks at what was seen; takes no weights."""

    def __init__(self, context: NodeContext) -> None:
        self.name = context.node.name

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """One call after the other, each after its request's delay."""
        return [self._one(call) for call in calls]

    def _one(self, call: Call) -> Mapping[str, Any]:
        params = call.request.params
        time.sleep(params["delay_ms"] / 1000)
        if params["fail_at"] == call.step:
            raise RuntimeError(f"{self.name} was told to fail")
        return self._outputs(call, call.inputs["seen"], params)

    @abstractmethod
    def _outputs(self, call: Call, seen: torch.Tensor, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the node gives for one call."""


class Observer(_Toy):
    """The numbers themselves, the masked places behind them."""

    def _outputs(self, call: Call, seen: torch.Tensor, params: Mapping[str, Any]) -> Mapping[str, Any]:
        mask = call.inputs["mask"]
        return {"state": seen.clone() if mask is None else torch.cat([seen, mask.float()])}


class Dreamer(_Toy):
    """The step, counted on from the last state, and the sum of all that was seen."""

    def _outputs(self, call: Call, seen: torch.Tensor, params: Mapping[str, Any]) -> Mapping[str, Any]:
        last = call.inputs["state"]
        step = torch.tensor(0.0) if last is None else last[0] + 1
        return {"state": torch.stack([step, seen[1::2].sum()])}


class Planner(_Toy):
    """Energies that sink with every refinement, and a plan that tells the seed's parity."""

    def _outputs(self, call: Call, seen: torch.Tensor, params: Mapping[str, Any]) -> Mapping[str, Any]:
        plan = torch.full((params["horizon"], COMPONENTS), float(call.request.seed % 2))
        return {"energies": torch.arange(3.0) - call.step, "plan": plan}
