"""Attention over the few positions of one frame, for the code predictor.

A frame's keys and values are one small tensor `[2, rows, groups, kv_heads, head_dim]`. What a step has to know of its
positions is the same in every frame, so it is made once for a number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.kernels import Kernels, attends, current_kernels
from mstar_core.nn.linear import Linear
from mstar_core.nn.norm import RMSNorm
from mstar_core.nn.rotary import RotaryTable
from mstar_qwen_omni.config import DenseDecoderConfig


@dataclass(frozen=True, slots=True)
class Place:
    """One step of a frame: `tokens` positions of every row, from `start` on. The mask is for PyTorch's attention; what
    follows it, for every token of every row, is for the compiled kernels."""

    start: int
    tokens: int
    mask: torch.Tensor | None  # bool [tokens * heads per kv head, start + tokens]; None where all is seen
    cos: torch.Tensor  # [rows * tokens, 1, head_dim]
    sin: torch.Tensor  # [rows * tokens, 1, head_dim], signed
    slots: torch.Tensor  # [rows * tokens] int64: where its keys go
    pages: torch.Tensor  # [rows * tokens, 1] int64: its row
    lengths: torch.Tensor  # [rows * tokens] int64: how many positions it sees

    @property
    def stop(self) -> int:
        """The position after the step's last."""
        return self.start + self.tokens


def frame_places(config: DenseDecoderConfig, rows: int, table: RotaryTable) -> list[Place]:
    """The steps of a frame: its first two positions at once, then one by one."""
    return [_place(config, rows, start, 1 if start else 2, table) for start in (0, *range(2, config.groups))]


class FrameAttention(nn.Module):
    """Grouped-query attention with normalised queries and keys.

    For PyTorch the norms' weights are multiplied into the rotary factors of each head: fewer operations do both.
    """

    def __init__(self, config: DenseDecoderConfig) -> None:
        super().__init__()
        self.config = config
        widths = [config.heads * config.head_dim, *[config.kv_heads * config.head_dim] * 2]
        self.qkv = Linear(config.hidden, widths)
        self.out = Linear(widths[0], [config.hidden])
        self.query_norm = RMSNorm(config.head_dim, config.eps)
        self.key_norm = RMSNorm(config.head_dim, config.eps)
        self._turning = config.heads + config.kv_heads
        self._kernels: Kernels | None = current_kernels()
        self._ones = torch.empty(0)
        self._weights = torch.empty(0)  # [turning, head_dim]: of both norms, head by head
        self._cos = torch.empty(0)  # [groups, turning, head_dim]
        self._sin = torch.empty(0)

    def prepare(self, table: RotaryTable) -> None:
        """Make the rotary factors of `groups` positions: once, after the weights are there."""
        heads = [(self.query_norm, self.config.heads), (self.key_norm, self.config.kv_heads)]
        weights = torch.cat([norm.weight.expand(count, -1) for norm, count in heads])
        self._weights = weights
        self._ones = torch.ones_like(self.query_norm.weight)
        self._cos = table.cos[:, None] * weights
        self._sin = table.sin[:, None] * weights.roll(self.config.head_dim // 2, -1)
        if not attends(weights.dtype, self.config.head_dim):
            self._kernels = None

    def forward(self, x: torch.Tensor, cache: torch.Tensor, place: Place) -> torch.Tensor:
        """`[rows * tokens, hidden]` to the same; the keys and values go to `cache`."""
        heads = self.qkv(x).view(x.shape[0], -1, self.config.head_dim)  # [rows * tokens, turning + kv_heads, head_dim]
        if self._kernels is not None:
            attended = self._compiled(self._kernels, heads, cache, place)
        else:
            attended = self._plain(heads.view(cache.shape[1], place.tokens, *heads.shape[1:]), cache, place)
        output: torch.Tensor = self.out(attended.reshape(x.shape[0], -1))
        return output

    def _plain(self, heads: torch.Tensor, cache: torch.Tensor, place: Place) -> torch.Tensor:
        """`[rows, tokens, heads, head_dim]`. The heads that share keys are so many queries of one head."""
        kv_heads, head_dim = self.config.kv_heads, self.config.head_dim
        span = slice(place.start, place.stop)
        normed = F.rms_norm(heads[:, :, : self._turning], (head_dim,), None, self.config.eps)
        turned = torch.addcmul(normed * self._cos[span], normed.roll(head_dim // 2, -1), self._sin[span])
        cache[0, :, span] = turned[:, :, self.config.heads :]
        cache[1, :, span] = heads[:, :, self._turning :]
        keys, values = cache[:, :, : place.stop].transpose(2, 3)  # [rows, kv_heads, stop, head_dim] each
        grouped = turned[:, :, : self.config.heads].reshape(*heads.shape[:2], kv_heads, -1, head_dim).transpose(1, 2)
        attended = F.scaled_dot_product_attention(grouped.flatten(2, 3), keys, values, attn_mask=place.mask)
        return attended.view(grouped.shape).transpose(1, 2)

    def _compiled(self, kernels: Kernels, heads: torch.Tensor, cache: torch.Tensor, place: Place) -> torch.Tensor:
        """`[rows * tokens, heads, head_dim]`: every row is a page of the cache."""
        turning = heads[:, : self._turning]
        torch.mul(kernels.rms_norm(turning, self._ones, self.config.eps), self._weights, out=turning)
        kernels.rotate(turning, place.cos, place.sin)
        queries, keys, values = heads.tensor_split((self.config.heads, self._turning), 1)
        return kernels.paged_decode(
            queries, keys, values, cache, place.slots, place.pages, place.lengths, self.config.head_dim**-0.5
        )


def _place(config: DenseDecoderConfig, rows: int, start: int, tokens: int, table: RotaryTable) -> Place:
    device = table.cos.device
    row = torch.arange(rows, device=device).repeat_interleave(tokens)
    position = torch.arange(start, start + tokens, device=device)
    mask = None
    if tokens > 1:
        seen = position[:, None] >= torch.arange(start + tokens, device=device)
        mask = seen.repeat_interleave(config.heads // config.kv_heads, 0)
    positions = position.repeat(rows)
    cos, sin = table.at(positions)
    slots = row * config.groups + positions
    return Place(start, tokens, mask, cos, sin, slots, row[:, None].contiguous(), positions + 1)
