"""Mixture of transformers (Liang et al., 2024, arXiv:2411.04996) as BAGEL has it: every layer exists twice.

`und` serves texts, what the ViT saw, and the two markers around every picture; `gen` serves latent tokens alone.
Attention is joint, so tokens stay where they are: a step of pictures gives all rows to `gen`, and the few marker rows
to `und` afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Markers = torch.Tensor | None
"""In a step of latent tokens the rows that are markers, int64 [markers]; None in a step without latent tokens."""


class Experts(nn.Module):
    """One layer, twice: `und` and `gen`, both as `make` makes them."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.und = make()
        self.gen = make()

    def forward(self, x: torch.Tensor, markers: Markers) -> torch.Tensor:
        """`[tokens, ...]` through the expert of each row."""
        if markers is None:
            output: torch.Tensor = self.und(x)
            return output
        output = self.gen(x)
        return output.index_copy_(0, markers, self.und(x.index_select(0, markers)))
