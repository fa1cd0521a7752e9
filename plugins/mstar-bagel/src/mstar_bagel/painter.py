"""The node `guidance`: noise first, then one step of Euler after the other. Small arithmetic, request by request."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from mstar_bagel.config import BagelConfig
from mstar_bagel.guidance import guide, guided, times
from mstar_bagel.parameters import COMPARED
from mstar_core.engines.base import Call, NodeContext
from mstar_core.engines.stateless import StatelessNode


class Guidance(StatelessNode):
    """A request's first run gives its noise, each later one the latents after one more step.

    The noise is drawn on the CPU in float32 from the request's seed, so that it is the same on every device.
    """

    def __init__(self, context: NodeContext) -> None:
        self._config: BagelConfig = context.config
        self._device = context.device

    def signature(self, call: Call) -> Hashable:
        """All requests go together, whatever their sizes and steps."""
        return call.walk

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """Of each call `latents` float32 `[tokens, latent width]`, the `time` that they are at, and the `progress`."""
        return [self._begin(call) if call.step == 0 else self._go_on(call) for call in calls]

    def _begin(self, call: Call) -> Mapping[str, torch.Tensor]:
        given = call.inputs["noise"]
        noise = self._noise(call) if given is None else torch.as_tensor(given)
        return {"latents": noise.to(self._device), "time": _times(call)[0]}

    def _noise(self, call: Call) -> torch.Tensor:
        rows, columns = self._config.grid(call.request.params["height"], call.request.params["width"])
        generator = torch.Generator().manual_seed(call.request.seed)
        return torch.randn(rows * columns, self._config.latent_width, generator=generator)

    def _go_on(self, call: Call) -> Mapping[str, torch.Tensor]:
        grid = _times(call)
        now, then = grid[call.step - 1], grid[call.step]
        velocity = self._velocity(call, float(now))
        return {
            "latents": torch.as_tensor(call.inputs["latents"]).to(self._device)
            - velocity * (now - then).to(self._device),
            "time": then,
            "progress": torch.tensor([call.step, len(grid) - 1]),
        }

    def _velocity(self, call: Call, time: float) -> torch.Tensor:
        """The velocity to follow. Of a context that main stands for there is none: it is main's."""
        main = torch.as_tensor(call.inputs["velocity"]).to(self._device)
        if not guided(time, call.request.params):
            return main
        text, image = (self._one_of(call, branch, main) for branch in ("text", "image"))
        return guide(main, text, image, call.request.params)

    def _one_of(self, call: Call, branch: str, main: torch.Tensor) -> torch.Tensor:
        for port in (f"velocity_{branch}", f"apart_{branch}"):
            if call.inputs[port] is not None:
                return torch.as_tensor(call.inputs[port]).to(self._device)
        if branch in call.request.params[COMPARED]:
            raise RuntimeError(
                f"the velocity of the context without {branch} is missing; guidance cannot do without it"
            )
        return main


def _times(call: Call) -> torch.Tensor:
    return times(call.request.params["steps"], call.request.params["timestep_shift"])
