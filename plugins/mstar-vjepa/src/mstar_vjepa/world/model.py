"""The node `world`: rollouts of the predictor on cached slots, one or many from the same observed frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mstar_core.engines.base import Call, NodeContext
from mstar_core.engines.kv_node import KVNode
from mstar_core.engines.segments import Part, Segment
from mstar_core.engines.step import Step
from mstar_core.engines.values import tensor_of
from mstar_vjepa.world.config import WorldConfig
from mstar_vjepa.world.predictor import SlotRotary, load_predictor

OBSERVED = "observed"
"""The sequence of all observed slots but the last, whose action is what rollouts differ in."""


@dataclass(frozen=True, slots=True)
class Slots:
    """What one call adds in one step: latents `[slots, tokens, width]` and conditions `[slots, n]`."""

    frames: torch.Tensor
    conditions: torch.Tensor


class WorldModel(KVNode):
    """`observe` caches the observed slots before the last. Every other call adds one slot to each of its rollouts.

    In its first round a rollout is a fork of what was observed and adds the last observed frame; then it adds what it
    predicted itself. The last round of a refinement gives the candidates' pages back.
    """

    host_outputs = ("energies",)
    run_ahead = ("imagined",)

    def __init__(self, context: NodeContext) -> None:
        self.config: WorldConfig = context.config
        self.device = context.device
        self.model = load_predictor(context)
        self.kv = self.model.kv
        self.rotary = SlotRotary(self.config, context.device, context.dtype)

    def segments(self, call: Call) -> Sequence[Segment]:
        """One full segment per slot."""
        slot, known = self.config.slot, len(call.inputs["latents"]) - 1
        if call.walk == "observe":
            return [Segment(tokens=slot, sequence=OBSERVED, mask="full")] * known
        names = [str(index) for index in range(len(call.inputs["conditions"]))]
        fork = OBSERVED if self._round(call) == 0 else None
        added = [Segment(tokens=slot, sequence=name, mask="full", fork=fork) for name in names]
        if call.walk == "plan" and self._round(call) == call.request.params["horizon"] - 1:
            added += [Segment(tokens=0, sequence=name, truncate=known * slot) for name in names]
        return added

    def forward(self, step: Step) -> Mapping[str, list[torch.Tensor]]:
        """What follows each rollout's slot, its pose then, and how far that is from the goal."""
        added = [self._added(call, _indices(parts)) for call, parts in zip(step.calls, step.parts, strict=True)]
        hidden = self.model(
            _joined([each.frames for each in added]),
            _joined([each.conditions for each in added]),
            self.rotary.at(step.positions),
            step.attend,
        )
        if step.calls[0].walk == "observe":
            return {}
        imagined = torch.split(self.model.next_frames(hidden), [len(each.frames) for each in added])
        pairs = list(zip(step.calls, imagined, strict=True))
        return {
            "imagined": list(imagined),
            "states": [self._poses(call, _indices(parts)) for call, parts in zip(step.calls, step.parts, strict=True)],
            "energies": [self._energies(call, frames) for call, frames in pairs],
        }

    def finish(self, call: Call, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Whether every rollout has come as near to the goal as the request wants."""
        if call.walk == "observe":
            return {}
        if call.inputs["goal"] is None:
            return {"reached": False, "energies": None}
        enough = call.request.params["stop_energy"]
        return {"reached": enough is not None and bool((row["energies"] <= enough).all())}

    def _round(self, call: Call) -> int:
        """How many slots the call's rollouts have added before."""
        params = call.request.params
        done = call.step - (len(call.inputs["latents"]) > 1)
        if call.walk == "plan":
            return done % int(params["horizon"])
        return done - int(params["horizon"] * params["refinements"] if call.walk == "imagine" else 0)

    def _added(self, call: Call, part: slice) -> Slots:
        conditions = tensor_of(call.inputs["conditions"], self.device)  # [rollouts, rounds, n]
        latents = tensor_of(call.inputs["latents"], self.device)  # [observed, tokens, width]
        if call.walk == "observe":
            return Slots(latents[part], conditions[0, part])
        turn = self._round(call)
        if turn == 0:
            return Slots(latents[-1].expand(part.stop - part.start, -1, -1), conditions[part, 0])
        return Slots(tensor_of(call.inputs["imagined"], self.device)[part], conditions[part, turn])

    def _poses(self, call: Call, part: slice) -> torch.Tensor:
        return tensor_of(call.inputs["states"], self.device)[part, self._round(call) + 1]

    def _energies(self, call: Call, frames: torch.Tensor) -> torch.Tensor:
        """The mean absolute difference to the goal, `[rollouts]`; nothing without a goal."""
        if call.inputs["goal"] is None:
            return frames.new_empty(0)
        return (frames - tensor_of(call.inputs["goal"], self.device)).abs().mean((1, 2))


def _indices(parts: Sequence[Part]) -> slice:
    """Which of a call's segments with tokens a step runs: they are its first ones, and cut only in between."""
    run = [part.index for part in parts if part.tokens]
    return slice(run[0], run[-1] + 1)


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
