"""The nodes `audio_encoder` and `vision_encoder`. What requests of a batch bring is encoded together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.base import Call, NodeContext
from mstar_core.engines.stateless import StatelessNode
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.encoders.audio import AudioTower, Heard
from mstar_qwen_omni.encoders.vision import Grid, VisionTower
from mstar_qwen_omni.encoders.weights import AUDIO, VISION, audio_names, load_encoder, vision_names
from mstar_qwen_omni.media.settings import MediaSettings

_PATCHES_TOGETHER = 65536
"""Patches that are encoded at the same time, unless one picture has more: 0.6 GB of inner values in bfloat16."""


class AudioEncoder(StatelessNode):
    """One sound a call: `clips` float32 [mel, frames] and `widths` int64 [] to `heard` float32 [rows, hidden]."""

    def __init__(self, context: NodeContext) -> None:
        config: QwenOmniConfig = context.config
        self.device = context.device
        self.model = load_encoder(lambda: AudioTower(config.audio), context, audio_names(config.audio), AUDIO)

    def signature(self, call: Call) -> Hashable:
        """Sounds whose chunks are padded alike."""
        return call.walk, int(call.inputs["widths"])

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """All sounds together."""
        sounds = [
            Heard(torch.as_tensor(call.inputs["clips"]).to(self.device), int(call.inputs["widths"])) for call in calls
        ]
        return [{"heard": rows.float()} for rows in self.model(sounds)]


class VisionEncoder(StatelessNode):
    """One picture or clip a call.

    `pictures` uint8 [patches, values] and `grids` int64 [3] to `seen` float32 [rows, hidden] and `deep` float32
    [levels, rows, hidden].
    """

    def __init__(self, context: NodeContext) -> None:
        config: QwenOmniConfig = context.config
        self.device = context.device
        self.model = load_encoder(lambda: VisionTower(config.vision), context, vision_names(config.vision), VISION)
        picture = MediaSettings.read(context.checkpoint).picture
        spread = config.vision.patch_values // len(picture.mean)  # values of a channel
        mean, std = (torch.tensor(each, device=self.device) for each in (picture.mean, picture.std))
        self._middle = (255 * mean).repeat_interleave(spread)  # [values]
        self._width = (255 * std).repeat_interleave(spread)

    def signature(self, call: Call) -> Hashable:
        """Pictures of any size."""
        return call.walk

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """Pictures together, as far as memory may be taken for them."""
        outputs: list[Mapping[str, Any]] = []
        waiting: list[Call] = []
        for call in calls:
            if waiting and sum(map(_patches, [*waiting, call])) > _PATCHES_TOGETHER:
                outputs += self._see(waiting)
                waiting = []
            waiting.append(call)
        return outputs + self._see(waiting)

    def normal(self, levels: torch.Tensor) -> torch.Tensor:
        """uint8 [patches, values] to float32, as the encoder takes them."""
        return (levels.float() - self._middle) / self._width

    def _see(self, calls: Sequence[Call]) -> list[Mapping[str, Any]]:
        levels = torch.cat([torch.as_tensor(call.inputs["pictures"]).to(self.device) for call in calls])
        grids = [_grid(call.inputs["grids"]) for call in calls]
        sights = self.model(self.normal(levels), grids)
        return [{"seen": sight.rows.float(), "deep": sight.deep.float()} for sight in sights]


def _patches(call: Call) -> int:
    patches: int = call.inputs["pictures"].shape[0]
    return patches


def _grid(sizes: torch.Tensor) -> Grid:
    steps, rows, columns = (int(size) for size in sizes)
    return steps, rows, columns
