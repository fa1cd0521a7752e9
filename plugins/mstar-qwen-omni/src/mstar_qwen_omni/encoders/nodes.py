"""The nodes `audio_encoder` and `vision_encoder`. What requests of a batch bring is encoded together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.base import Call, NodeContext
from mstar_core.engines.stateless import StatelessNode
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.encoders.audio import AudioTower, Heard
from mstar_qwen_omni.encoders.vision import VisionTower
from mstar_qwen_omni.encoders.weights import AUDIO, VISION, audio_names, load_encoder, vision_names


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

    `pictures` float32 [patches, values] and `grids` int64 [3] to `seen` float32 [rows, hidden] and `deep` float32
    [levels, rows, hidden].
    """

    def __init__(self, context: NodeContext) -> None:
        config: QwenOmniConfig = context.config
        self.device = context.device
        self.model = load_encoder(lambda: VisionTower(config.vision), context, vision_names(config.vision), VISION)

    def signature(self, call: Call) -> Hashable:
        """Pictures of any size."""
        return call.walk

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """All pictures together."""
        patches = torch.cat([torch.as_tensor(call.inputs["pictures"]).to(self.device) for call in calls])
        grids = [tuple(int(size) for size in call.inputs["grids"]) for call in calls]
        return [{"seen": sight.rows.float(), "deep": sight.deep.float()} for sight in self.model(patches, grids)]
