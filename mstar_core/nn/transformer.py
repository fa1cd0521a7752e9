"""A plain pre-norm transformer block: LayerNorm, attention and a GELU MLP, with biases.

What attention sees is the caller's: `Step.attend` over cached segments, or `attend_within` for sequences without a
cache. The layout is that of vision transformers (Dosovitskiy et al., 2021, arXiv:2010.11929).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.nn.linear import Linear
from mstar_core.nn.rotary import rotation

Attend: TypeAlias = "Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]"
"""`(layer, queries, keys, values)`, each `[rows, heads, head_dim]`, to `[rows, heads, head_dim]`."""

Rotary: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"
"""Cosines and signed sines as `rotary.rotate` takes them, `[rows, 1, head_dim]` each."""


class LayerNorm(nn.Module):
    """`(x - mean) / sqrt(variance + eps) * weight + bias` over the last axis (Ba et al., 2016, arXiv:1607.06450)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(width), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[..., width]`, in the dtype of `x`."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class GeluMLP(nn.Module):
    """`down(gelu(up(x)))`."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.up = Linear(hidden, [width], bias=True)
        self.down = Linear(width, [hidden], bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden] -> [rows, hidden]`."""
        output: torch.Tensor = self.down(self.up.gelu(x))
        return output


class Attention(nn.Module):
    """Multi-head attention with one fused projection."""

    def __init__(self, hidden: int, heads: int, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads = heads
        self.head_dim = hidden // heads
        self._rotate = rotation()
        self.qkv = Linear(hidden, [hidden] * 3, bias=True)
        self.out = Linear(hidden, [hidden], bias=True)

    def forward(self, x: torch.Tensor, attend: Attend, rotary: Rotary | None = None) -> torch.Tensor:
        """`[rows, hidden] -> [rows, hidden]`; with `rotary`, queries and keys are rotated first."""
        heads = self.qkv(x).view(x.shape[0], 3 * self.heads, self.head_dim)  # [rows, 3 heads, head_dim]
        turned = heads[:, : 2 * self.heads]  # [rows, 2 heads, head_dim]
        if rotary is not None:
            turned = self._rotate(turned, *rotary)
        queries, keys = turned[:, : self.heads], turned[:, self.heads :]
        attended = attend(self.layer, queries, keys, heads[:, 2 * self.heads :])
        output: torch.Tensor = self.out(attended.reshape(x.shape[0], -1))
        return output


class TransformerBlock(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual; `layer` is the number that `attend` gets."""

    def __init__(self, hidden: int, heads: int, mlp: int, eps: float, layer: int) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(hidden, eps)
        self.attention = Attention(hidden, heads, layer)
        self.mlp_norm = LayerNorm(hidden, eps)
        self.mlp = GeluMLP(hidden, mlp)

    def forward(self, x: torch.Tensor, attend: Attend, rotary: Rotary | None = None) -> torch.Tensor:
        """`[rows, hidden] -> [rows, hidden]`."""
        x = x + self.attention(self.attention_norm(x), attend, rotary)
        hidden: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return hidden


def attend_within(sequences: int) -> Attend:
    """Full attention inside each of `sequences` equally long sequences, whose rows lie one after the other."""

    def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.view(sequences, -1, *x.shape[1:]).transpose(1, 2) for x in (queries, keys, values))
        out = F.scaled_dot_product_attention(q, k, v)  # [sequences, heads, tokens, head_dim]
        return out.transpose(1, 2).reshape(queries.shape)

    return attend
