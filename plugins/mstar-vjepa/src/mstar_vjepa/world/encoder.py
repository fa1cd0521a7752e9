"""The node `encoder`: observed frames to the latents that the world model works on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from mstar_core.engines.base import Call, NodeContext
from mstar_core.engines.stateless import StatelessNode
from mstar_core.engines.weights import load_weights
from mstar_vjepa.encoder import VisionEncoder
from mstar_vjepa.rotary import reorder_and_pack
from mstar_vjepa.world.config import WorldConfig
from mstar_vjepa.world.weights import encoder_names, weights_of

_STALE = ("pos_embed",)
"""What a file may hold of positions from before the rotary embedding; the reference leaves it out too."""


class FrameEncoder(StatelessNode):
    """Every frame is a clip of its own; the frames of all calls are encoded together.

    Frames that come as latents are handed on: they were encoded before.
    """

    def __init__(self, context: NodeContext) -> None:
        config: WorldConfig = context.config
        self.device = context.device
        self.eps = config.latent_eps
        with torch.device("meta"):
            self.model = VisionEncoder(config.patches, config.encoder)
        load_weights(
            self.model,
            weights_of(context.checkpoint, "encoder"),
            encoder_names(config.encoder.layers),
            device=context.device,
            dtype=context.dtype,
            ignore=_STALE,
            filled=reorder_and_pack(config.encoder.heads, config.patches.tokens),
        )

    def signature(self, call: Call) -> Hashable:
        """Any numbers of frames run in one batch; latents apart from pictures."""
        return call.walk, call.inputs["frames"].dim()

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """`frames` `[n, 3, height, width]` (or latents) to `latents` `[n, tokens, width]` float32, for each call."""
        given = [torch.as_tensor(call.inputs["frames"]) for call in calls]
        if given[0].dim() == 3:
            return [{"latents": latents} for latents in given]
        encoded = normalise(self.model.frames(torch.cat(given).to(self.device)).float(), self.eps)
        return [{"latents": latents} for latents in torch.split(encoded, [len(each) for each in given])]


def normalise(latents: torch.Tensor, eps: float | None) -> torch.Tensor:
    """The norm without weights that latents have in the world model, `[..., width]`; None leaves them as they are."""
    return latents if eps is None else F.layer_norm(latents, latents.shape[-1:], eps=eps)
