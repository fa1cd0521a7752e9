"""The vision tower: patches of pictures and clips through a transformer that attends within one frame.

After some blocks a merger of its own makes rows of what is there ("deepstack", Meng et al., 2024, arXiv:2406.04334);
the thinker adds them behind its first layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.nn.linear import Linear
from mstar_core.nn.packing import Product, packed_product
from mstar_core.nn.transformer import Attend, Attention, LayerNorm, Rotary
from mstar_qwen_omni.config import VisionConfig
from mstar_qwen_omni.encoders.groups import attend_inside

_TABLES = 16
"""Sizes of pictures whose positions are kept."""

Grid = tuple[int, int, int]
"""Steps, rows and columns of patches."""


class PatchEmbedding(nn.Module):
    """A convolution whose kernel is its stride: one linear map per patch."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        shape = (config.hidden, config.channels, config.temporal, config.patch, config.patch)
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(config.hidden), requires_grad=False)
        self._product: Product | None = None

    def pack(self, rows: int) -> None:
        """As `Linear.pack`."""
        self._product = packed_product(self.weight.flatten(1), rows)
        if self._product is not None:
            self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """`[patches, values] -> [patches, hidden]`."""
        if self._product is not None:
            return self._product(patches, self.bias)
        return F.linear(patches, self.weight.flatten(1), self.bias)


class Block(nn.Module):
    """Attention and a GELU MLP (its tanh form), each behind a norm and beside a residual."""

    def __init__(self, config: VisionConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(config.hidden, config.eps)
        self.attention = Attention(config.hidden, config.heads, layer)
        self.mlp_norm = LayerNorm(config.hidden, config.eps)
        self.up = Linear(config.hidden, [config.mlp], bias=True)
        self.down = Linear(config.mlp, [config.hidden], bias=True)

    def forward(self, x: torch.Tensor, attend: Attend, rotary: Rotary) -> torch.Tensor:
        """`[patches, hidden] -> [patches, hidden]`."""
        x = x + self.attention(self.attention_norm(x), attend, rotary)
        widened = F.gelu(self.up(self.mlp_norm(x)), approximate="tanh")
        hidden: torch.Tensor = x + self.down(widened)
        return hidden


class Merger(nn.Module):
    """A square of patches to one row; the norm is over each patch, or (`joined`) over the whole square."""

    def __init__(self, config: VisionConfig, *, joined: bool) -> None:
        super().__init__()
        self.square = config.hidden * config.merge**2
        self.norm = LayerNorm(self.square if joined else config.hidden, config.eps)
        self.joined = joined
        self.inner = Linear(self.square, [self.square], bias=True)
        self.outer = Linear(self.square, [config.output], bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[patches, hidden] -> [patches / merge^2, output]`."""
        squares = self.norm(x.view(-1, self.square)) if self.joined else self.norm(x).view(-1, self.square)
        rows: torch.Tensor = self.outer(self.inner.gelu(squares))
        return rows


@dataclass(frozen=True, slots=True)
class Sight:
    """What the thinker gets of one picture or clip: `rows` [n, output], `deep` [levels, n, output]."""

    rows: torch.Tensor
    deep: torch.Tensor


class VisionTower(nn.Module):
    """Pictures and clips to rows for the thinker."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patches = PatchEmbedding(config)
        self.positions = nn.Embedding(config.side**2, config.hidden)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.merger = Merger(config, joined=False)
        self.deep = nn.ModuleList(Merger(config, joined=True) for _ in config.deepstack)
        self._tables = lru_cache(_TABLES)(self._make_tables)

    def forward(self, patches: torch.Tensor, grids: Sequence[Grid]) -> list[Sight]:
        """`[patches, values]` of all pictures and clips, one behind the other, and the size of each."""
        tables = [self._tables(rows, columns) for _, rows, columns in grids]
        repeated = [[table.repeat(grid[0], 1, 1) for table in each] for grid, each in zip(grids, tables, strict=True)]
        positions, cos, sin = (torch.cat(each) for each in zip(*repeated, strict=True))  # [patches, 1, ...]
        x = self.patches(patches.to(positions.dtype)) + positions[:, 0]
        attend = attend_inside([rows * columns for steps, rows, columns in grids for _ in range(steps)], x.device)
        deep = []
        for layer, block in enumerate(self.blocks):
            x = block(x, attend, (cos, sin))
            if layer in self.config.deepstack:
                deep.append(self.deep[self.config.deepstack.index(layer)](x))
        counts = [steps * rows * columns // self.config.merge**2 for steps, rows, columns in grids]
        stacked = torch.stack(deep) if deep else x.new_empty(0, sum(counts), self.config.output)
        split = zip(self.merger(x).split(counts), stacked.split(counts, dim=1), strict=True)
        return [Sight(rows, levels) for rows, levels in split]

    def _make_tables(self, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What a frame's patches add for their place, and cosines and signed sines, `[patches, 1, width]` each."""
        order = _by_blocks(rows, columns, self.config.merge)
        table = self.positions.weight.float()
        square = table.T.view(1, -1, self.config.side, self.config.side)
        learned = F.interpolate(square, (rows, columns), mode="bilinear", align_corners=True)
        learned = learned[0].flatten(1).T[order.to(table.device)]  # [patches, hidden]
        angles = _angles(rows, columns, self.config)[order]  # [patches, head_dim / 2]
        cos = torch.cat([angles.cos(), angles.cos()], dim=1)
        sin = torch.cat([-angles.sin(), angles.sin()], dim=1)
        weight = self.positions.weight
        return learned.to(weight)[:, None], cos.to(weight)[:, None], sin.to(weight)[:, None]


def _by_blocks(rows: int, columns: int, merge: int) -> torch.Tensor:
    """Which patch, counted row by row, is the n-th: by squares of `merge` x `merge`, `[patches]`."""
    places = torch.arange(rows * columns).view(rows // merge, merge, columns // merge, merge)
    return places.transpose(1, 2).flatten()


def _angles(rows: int, columns: int, config: VisionConfig) -> torch.Tensor:
    """Rotary angles by rows, then by columns, of patches counted row by row, `[patches, head_dim / 2]`."""
    half = config.head_dim // 2
    frequencies = config.theta ** -(torch.arange(0, half, 2).float() / half)  # [head_dim / 4]
    row, column = torch.meshgrid(torch.arange(rows).float(), torch.arange(columns).float(), indexing="ij")
    return torch.cat([place.reshape(-1, 1) * frequencies for place in (row, column)], dim=1)
