"""The vision transformer that reads pictures: SigLIP (Zhai et al., 2023, arXiv:2303.15343) without its head, a
connector to the language model's width, and the rows of a 2-D sine and cosine table.

A patch is linear in its values already, in the order row, column, channel. Positions are those of the tables, whose
side is the largest picture's: a smaller picture takes the upper left corner.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from mstar_bagel.config import VitConfig
from mstar_core.nn.linear import Linear
from mstar_core.nn.transformer import GeluMLP, LayerNorm, TransformerBlock, attend_within


class TanhMLP(GeluMLP):
    """`down(gelu(up(x)))` with the GELU's tanh approximation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden] -> [rows, hidden]`."""
        output: torch.Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return output


class SiglipBlock(TransformerBlock):
    """A pre-norm block whose MLP is SigLIP's."""

    def __init__(self, config: VitConfig, layer: int) -> None:
        super().__init__(config.hidden, config.heads, config.mlp, config.eps, layer)
        self.mlp = TanhMLP(config.hidden, config.mlp)


class Connector(nn.Module):
    """Two linear layers to the language model's width."""

    def __init__(self, config: VitConfig, width: int) -> None:
        super().__init__()
        self.up = Linear(config.hidden, [width], bias=True)
        self.down = Linear(width, [width], bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, vit hidden] -> [rows, llm hidden]`."""
        output: torch.Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return output


class VisionTower(nn.Module):
    """Pictures of one size to rows of the language model's input."""

    def __init__(self, config: VitConfig, width: int) -> None:
        super().__init__()
        self.side, self.patch = config.side, config.patch
        self.embed = Linear(config.patch_values, [config.hidden], bias=True)
        self.positions = nn.Parameter(torch.empty(config.side**2, config.hidden), requires_grad=False)
        self.blocks = nn.ModuleList(SiglipBlock(config, layer) for layer in range(config.layers))
        self.norm = LayerNorm(config.hidden, config.eps)
        self.connector = Connector(config, width)
        self.llm_positions = nn.Parameter(torch.empty(config.side**2, width), requires_grad=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """`[pictures, height, width, 3]` in -1 to 1, sides multiples of the patch, to
        `[pictures, patches, llm hidden]`, patches row by row."""
        pictures = pixels.shape[0]
        grid = pixels.shape[1] // self.patch, pixels.shape[2] // self.patch
        rows = self.connector(self.encode(self.patches(pixels), pictures, grid))
        located: torch.Tensor = rows.view(pictures, -1, rows.shape[1]) + self._corner(self.llm_positions, grid)
        return located

    def patches(self, pixels: torch.Tensor) -> torch.Tensor:
        """`[pictures, height, width, 3] -> [pictures * patches, patch_values]`."""
        pictures, height, width, channels = pixels.shape
        cut = pixels.view(pictures, height // self.patch, self.patch, width // self.patch, self.patch, channels)
        # [pictures, rows, columns, row in patch, column in patch, channels]
        return cut.transpose(2, 3).reshape(-1, self.patch * self.patch * channels)

    def encode(self, patches: torch.Tensor, pictures: int, grid: tuple[int, int]) -> torch.Tensor:
        """The transformer alone: `[pictures * patches, patch_values] -> [pictures * patches, vit hidden]`."""
        x = self.embed(patches) + self._corner(self.positions, grid).repeat(pictures, 1)
        attend = attend_within(pictures)
        for block in self.blocks:
            x = block(x, attend)
        output: torch.Tensor = self.norm(x)
        return output

    def _corner(self, table: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """A table's rows for a picture of `grid` patches, `[patches, width]`."""
        rows, columns = grid
        return table.view(self.side, self.side, -1)[:rows, :columns].flatten(0, 1)
