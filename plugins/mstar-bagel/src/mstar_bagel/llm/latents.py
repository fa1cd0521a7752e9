"""Latent tokens on their way into the language model, and the velocities that come out of it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from mstar_bagel.config import BagelConfig
from mstar_core.nn.linear import Linear

_FREQUENCIES = 256
"""Width of a time's sines and cosines (ByteDance-Seed/Bagel, `modeling/bagel/modeling_utils.py`)."""

Grid = tuple[int, int]
"""Rows and columns of a picture's latent tokens."""


class LatentLayers(nn.Module):
    """Token, time and place to a row; a final hidden state to a velocity."""

    def __init__(self, config: BagelConfig) -> None:
        super().__init__()
        width, hidden = config.latent_width, config.llm.hidden
        self.side = config.latent_side
        self.token = Linear(width, [hidden], bias=True)
        self.time_up = Linear(_FREQUENCIES, [hidden], bias=True)
        self.time_down = Linear(hidden, [hidden], bias=True)
        self.positions = nn.Parameter(torch.empty(self.side**2, hidden), requires_grad=False)
        self.velocity = Linear(hidden, [width], bias=True)

    def rows(self, tokens: torch.Tensor, time: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Rows of the language model's input `[tokens, hidden]` for latent tokens float32 `[tokens, latent width]` of
        one picture at `time`, float32 []; the embedding of 0, a picture without noise, is added, too."""
        dtype, device = self.positions.dtype, self.positions.device
        # [tokens, hidden]
        rows: torch.Tensor = self.token(tokens.to(device, dtype)) + self.times(time.reshape(1).to(device))
        return rows + self.places(grid)

    def times(self, times: torch.Tensor) -> torch.Tensor:
        """Embeddings `[times, hidden]` of float32 `[times]` in 0 to 1."""
        waves = sinusoids(times).to(self.positions.dtype)
        embedded: torch.Tensor = self.time_down(F.silu(self.time_up(waves)))
        return embedded

    def places(self, grid: Grid) -> torch.Tensor:
        """The table's rows for a picture of `grid` tokens, row by row, `[tokens, hidden]`: its upper left corner."""
        rows, columns = grid
        return self.positions.view(self.side, self.side, -1)[:rows, :columns].flatten(0, 1)


def sinusoids(times: torch.Tensor) -> torch.Tensor:
    """Cosines, then sines, of times float32 `[times]` at falling frequencies: float32 `[times, 256]`."""
    half = _FREQUENCIES // 2
    steps = torch.arange(half, dtype=torch.float32, device=times.device)
    angles = times[:, None] * torch.exp(-math.log(10_000.0) * steps / half)  # [times, half]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
