"""The node `encoder`: clips to latents. Clips of equal length are encoded together."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mstar_core.engines.base import NodeContext
from mstar_core.engines.stateless import TensorNode
from mstar_vjepa.clip.config import ClipConfig
from mstar_vjepa.clip.weights import encoder_names, load_part
from mstar_vjepa.encoder import VisionEncoder


class ClipEncoder(TensorNode):
    """Latents after the final norm, float32, tokens in the order time, row, column."""

    def __init__(self, context: NodeContext) -> None:
        config: ClipConfig = context.config
        self.device = context.device
        self.model = load_part(
            lambda: VisionEncoder(config.patches, config.encoder),
            context,
            encoder_names(config.prefix, config.encoder.layers),
            parts=("encoder.",),
            heads=config.encoder.heads,
        )

    def compute(self, **inputs: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """`pixels` `[clips, frames, 3, height, width]` to `latents` `[clips, tokens, hidden]`."""
        return {"latents": self.model.clips(inputs["pixels"].to(self.device)).float()}
