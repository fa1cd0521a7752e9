"""The node `predictor`: latents of masked tokens, from those of visible ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from mstar_core.engines.base import NodeContext
from mstar_core.engines.stateless import TensorNode
from mstar_core.nn.linear import Linear
from mstar_core.nn.transformer import LayerNorm, TransformerBlock, attend_within
from mstar_vjepa.clip.config import ClipConfig
from mstar_vjepa.clip.weights import load_part, predictor_names
from mstar_vjepa.rotary import grid_angles, tables

_MASK_TOKEN = 1
"""Which of the learned mask tokens stands for a target (transformers, `VJEPA2PredictorEmbeddings`)."""


class MaskedPredictor(nn.Module):
    """Context latents and mask tokens, each at its token's position, through narrow blocks with full attention."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        tower, width = config.predictor, config.encoder.hidden
        self.grid = config.patches
        self.head_dim = tower.head_dim
        self.embed = Linear(width, [tower.hidden], bias=True)
        self.mask_tokens = nn.Parameter(torch.empty(config.mask_tokens, 1, 1, tower.hidden), requires_grad=False)
        self.blocks = nn.ModuleList(
            TransformerBlock(tower.hidden, tower.heads, tower.mlp, tower.eps, layer) for layer in range(tower.layers)
        )
        self.norm = LayerNorm(tower.hidden, tower.eps)
        self.project = Linear(tower.hidden, [width], bias=True)

    def forward(self, latents: torch.Tensor, context: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """`[clips, targets, width]` for latents `[clips, tokens, width]` and token numbers `[clips, n]`.

        The reference sorts its tokens by position first, which full attention does not notice.
        """
        clips, width = latents.shape[0], latents.shape[-1]
        seen = latents.gather(1, context[..., None].expand(-1, -1, width))  # [clips, n, width]
        visible = self.embed(seen.reshape(-1, width)).view(clips, -1, self.mask_tokens.shape[-1])
        token = self.mask_tokens[_MASK_TOKEN % len(self.mask_tokens)]  # [1, 1, hidden]
        x = torch.cat([visible, token.expand(clips, target.shape[1], -1)], dim=1).flatten(0, 1)
        rotary = self._rotary(torch.cat([context, target], dim=1), latents.shape[1])
        attend = attend_within(clips)
        for block in self.blocks:
            x = block(x, attend, rotary)
        targets = x.view(clips, -1, x.shape[-1])[:, context.shape[1] :]  # [clips, targets, hidden]
        predicted: torch.Tensor = self.project(self.norm(targets).flatten(0, 1))
        return predicted.view(clips, -1, width)

    def _rotary(self, places: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        slots = tokens // self.grid.tokens
        angles = grid_angles(slots, self.grid.rows, self.grid.columns, self.head_dim)
        return tables(angles[places.flatten().cpu()], places.device, self.norm.weight.dtype)


class Predictor(TensorNode):
    """Predicted latents, float32, in the order of the targets; a mask that is missing means every token."""

    def __init__(self, context: NodeContext) -> None:
        config: ClipConfig = context.config
        self.device, self.dtype = context.device, context.dtype
        self.model = load_part(
            lambda: MaskedPredictor(config),
            context,
            predictor_names(config.prefix, config.predictor.layers),
            parts=("predictor.",),
            heads=config.predictor.heads,
        )

    def compute(self, **inputs: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """`latents` `[clips, tokens, width]` and masks `[clips, n]` to `predictions` `[clips, targets, width]`."""
        latents = inputs["latents"].to(self.device, self.dtype)
        every = torch.arange(latents.shape[1]).expand(latents.shape[0], -1)
        context, target = (inputs.get(name, every).to(self.device) for name in ("context_mask", "target_mask"))
        return {"predictions": self.model(latents, context, target).float()}
