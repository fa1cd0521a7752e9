"""The nodes `sample` and `refit`: candidates of a plan, and what their energies teach."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mstar_core.engines.base import Call, NodeContext
from mstar_core.engines.stateless import StatelessNode
from mstar_vjepa.world.cem import Belief, candidates, decision, draws, first_belief, refit
from mstar_vjepa.world.pose import follow


class _PlannerNode(StatelessNode):
    """Small arithmetic on the host, call by call."""

    def __init__(self, context: NodeContext) -> None:
        """Nothing to load."""

    def signature(self, call: Call) -> Hashable:
        """All calls go together."""
        return call.walk

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """Outputs of each call."""
        return [self.compute(call) for call in calls]

    @abstractmethod
    def compute(self, call: Call) -> Mapping[str, torch.Tensor]:
        """Outputs of one call."""


class Sampler(_PlannerNode):
    """Draws the candidates of a refinement; the request's noise stands for draws where it brings some."""

    def compute(self, call: Call) -> Mapping[str, torch.Tensor]:
        """`candidates` `[samples, horizon, 7]` and what the world model reads of them."""
        params, noise = call.request.params, call.inputs["noise"]
        drawn = (
            draws(call.request.seed, call.step, params["horizon"], params["samples"])
            if noise is None
            else _numpy(noise)[call.step]
        )
        tried = candidates(_belief(call), drawn, params)
        return {"candidates": torch.from_numpy(tried), **_script(call, tried)}


class Refitter(_PlannerNode):
    """Refits the belief to the best candidates, and says which actions it comes down to."""

    def compute(self, call: Call) -> Mapping[str, torch.Tensor]:
        """`mean` and `std` `[horizon, 4]`; `actions` `[horizon, 7]` and what the world model reads of them."""
        tried, energies = _numpy(call.inputs["candidates"]), _numpy(call.inputs["energies"])
        belief = refit(_belief(call), tried, energies, call.request.params)
        chosen = decision(belief)
        return {
            "mean": torch.from_numpy(belief.mean),
            "std": torch.from_numpy(belief.std),
            "actions": torch.from_numpy(chosen),
            **_script(call, chosen[None]),
        }


def _belief(call: Call) -> Belief:
    mean, std = call.inputs["mean"], call.inputs["std"]
    return first_belief(call.request.params) if mean is None else Belief(_numpy(mean), _numpy(std))


def _script(call: Call, actions: NDArray[np.float32]) -> dict[str, torch.Tensor]:
    """`conditions` `[rollouts, horizon, n]` and `states` `[rollouts, horizon + 1, 7]` of actions from the last pose."""
    states = follow(_numpy(call.inputs["pose"]), actions)
    parts = [actions, states[:, :-1]]
    if call.inputs["camera"] is not None:
        parts.append(np.broadcast_to(_numpy(call.inputs["camera"]), (*actions.shape[:2], 6)))
    return {
        "conditions": torch.from_numpy(np.concatenate(parts, axis=-1)),
        "states": torch.from_numpy(np.ascontiguousarray(states)),
    }


def _numpy(tensor: torch.Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = torch.as_tensor(tensor).cpu().numpy()
    return array
