"""The vision transformer that both models see with: clips to latents, by full attention over space and time."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.nn.transformer import LayerNorm, Rotary, TransformerBlock, attend_within
from mstar_vjepa.config import CHANNELS, PatchConfig, TowerConfig
from mstar_vjepa.rotary import grid_angles, tables

_TABLES = 8
"""Clip lengths whose rotary tables are kept."""


class PatchEmbedding(nn.Module):
    """A strided convolution whose kernel is its stride: one linear map per patch of `tubelet` frames."""

    def __init__(self, patches: PatchConfig, hidden: int) -> None:
        super().__init__()
        shape = (hidden, CHANNELS, patches.tubelet, patches.size, patches.size)
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(hidden), requires_grad=False)

    def clips(self, pixels: torch.Tensor) -> torch.Tensor:
        """`[clips, frames, 3, height, width] -> [clips * tokens, hidden]`; frames that fill no tubelet are dropped."""
        tubelet = self.weight.shape[2]
        slots = pixels.shape[1] // tubelet
        return self._project(pixels[:, : slots * tubelet], self.weight)

    def frames(self, pixels: torch.Tensor) -> torch.Tensor:
        """`[frames, 3, height, width] -> [frames * tokens, hidden]`, as if each frame filled a tubelet by itself."""
        return self._project(pixels[:, None], self.weight.sum(2, keepdim=True))

    def _project(self, pixels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        depth, size = weight.shape[2], weight.shape[3]
        clips, frames, channels, height, width = pixels.shape
        cut = pixels.view(clips, frames // depth, depth, channels, height // size, size, width // size, size)
        # [clips, slots, rows, columns, channels, depth, size, size]
        patches = cut.permute(0, 1, 4, 6, 3, 2, 5, 7).reshape(-1, weight[0].numel())
        return F.linear(patches.to(weight.dtype), weight.flatten(1), self.bias)


class VisionEncoder(nn.Module):
    """Patch embedding, blocks and final norm."""

    def __init__(self, patches: PatchConfig, tower: TowerConfig) -> None:
        super().__init__()
        self.grid = patches
        self.head_dim = tower.head_dim
        self.patches = PatchEmbedding(patches, tower.hidden)
        self.blocks = nn.ModuleList(
            TransformerBlock(tower.hidden, tower.heads, tower.mlp, tower.eps, layer) for layer in range(tower.layers)
        )
        self.norm = LayerNorm(tower.hidden, tower.eps)
        self._rotary = lru_cache(_TABLES)(self._tables)

    def clips(self, pixels: torch.Tensor) -> torch.Tensor:
        """Latents `[clips, tokens, hidden]` of clips `[clips, frames, 3, height, width]`; a lone frame is repeated."""
        if pixels.shape[1] < self.grid.tubelet:
            pixels = pixels[:, :1].expand(-1, self.grid.tubelet, -1, -1, -1)
        return self._encode(self.patches.clips(pixels), pixels.shape[0], pixels.shape[1] // self.grid.tubelet)

    def frames(self, pixels: torch.Tensor) -> torch.Tensor:
        """Latents `[frames, tokens, hidden]` of frames `[frames, 3, height, width]`, each a clip of its own."""
        return self._encode(self.patches.frames(pixels), pixels.shape[0], 1)

    def _encode(self, x: torch.Tensor, clips: int, slots: int) -> torch.Tensor:
        rotary = tuple(table.repeat(clips, 1, 1) for table in self._rotary(slots))
        attend = attend_within(clips)
        for block in self.blocks:
            x = block(x, attend, rotary)
        latents: torch.Tensor = self.norm(x)
        return latents.view(clips, -1, latents.shape[-1])

    def _tables(self, slots: int) -> Rotary:
        weight = self.norm.weight
        return tables(grid_angles(slots, self.grid.rows, self.grid.columns, self.head_dim), weight.device, weight.dtype)
