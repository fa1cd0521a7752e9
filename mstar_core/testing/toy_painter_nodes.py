"""The toy painter's nodes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.base import Call, NodeContext
from mstar_core.engines.stateless import StatelessNode
from mstar_core.testing.toy_painter import PIECE


class Writer(StatelessNode):
    """The story, some bytes a call; behind the seed's last two digits when the temperature is not 0."""

    def __init__(self, context: NodeContext) -> None:
        """No weights."""

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """One call after the other, each after its request's delay."""
        return [self._one(call) for call in calls]

    def _one(self, call: Call) -> Mapping[str, Any]:
        params, place = call.request.params, call.inputs["place"]
        time.sleep(params["delay_ms"] / 1000)
        text = call.inputs["story"].numpy().tobytes()
        if params["temperature"]:
            text = b"%02d " % (call.request.seed % 100) + text
        first = 0 if place is None else int(place)
        piece = torch.frombuffer(bytearray(text[first : first + PIECE]), dtype=torch.uint8)  # [bytes]
        return {"piece": piece, "place": torch.tensor(first + PIECE), "stop": first + PIECE >= len(text)}


class Painter(StatelessNode):
    """A picture of one colour, that of story, seed and number of the last step."""

    def __init__(self, context: NodeContext) -> None:
        """No weights."""

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """One call after the other, each after its request's delay."""
        return [self._one(call) for call in calls]

    def _one(self, call: Call) -> Mapping[str, Any]:
        params, last = call.request.params, call.inputs["picture"]
        time.sleep(params["delay_ms"] / 1000)
        if params["fail_at"] == call.step:
            raise RuntimeError("the painter was told to fail")
        before = b"" if last is None else last[0, 0].numpy().tobytes()
        seen = call.inputs["story"].numpy().tobytes() + str(call.request.seed).encode() + before
        colour = torch.tensor(list(hashlib.sha256(seen).digest()[:3]), dtype=torch.uint8)
        picture = colour.expand(params["height"], params["width"], 3).contiguous()  # [height, width, 3]
        return {"picture": picture, "progress": torch.tensor([call.step + 1, params["steps"]])}
