"""The transformer in front of the upsampling: a sliding window over frames, and a scale per channel on each branch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.base import TensorParallel
from mstar_core.nn.linear import Linear
from mstar_core.nn.llama import GatedMLP
from mstar_core.nn.norm import RMSNorm
from mstar_core.nn.rotary import frequencies, rotate
from mstar_qwen_omni.config import Code2WavConfig
from mstar_qwen_omni.speech.code2wav.memory import Memory


class WindowAttention(nn.Module):
    """Every frame sees itself and the `window - 1` frames before it."""

    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.head_dim = config.head_dim
        self.reach = config.window - 1
        widths = [config.heads * config.head_dim, *[config.kv_heads * config.head_dim] * 2]
        self.qkv = Linear(config.hidden, widths)
        self.out = Linear(widths[0], [config.hidden])

    def forward(self, x: torch.Tensor, memory: Memory, seen: Seen) -> torch.Tensor:
        """`[batch * frames, hidden]` to the same."""
        batch, frames = seen.mask.shape[0], seen.mask.shape[2]
        heads = self.qkv(x).view(batch * frames, -1, self.head_dim)  # [batch * frames, heads + 2 kv_heads, head_dim]
        turned = rotate(heads[:, : self.heads + self.kv_heads], seen.cos, seen.sin)
        queries = turned[:, : self.heads].view(batch, frames, self.heads, self.head_dim)
        fresh = torch.cat([turned[:, self.heads :], heads[:, self.heads + self.kv_heads :]], 1)
        cached = memory.padded(fresh.view(batch, frames, -1).mT, self.reach)  # [batch, channels, reach + frames]
        keys, values = cached.view(batch, 2, self.kv_heads, self.head_dim, -1).mT.unbind(1)
        attended = F.scaled_dot_product_attention(
            queries.transpose(1, 2), keys, values, attn_mask=seen.mask, enable_gqa=self.heads != self.kv_heads
        )  # [batch, heads, frames, head_dim]
        output: torch.Tensor = self.out(attended.transpose(1, 2).reshape(batch * frames, -1))
        return output


class WindowBlock(nn.Module):
    """Attention and MLP, each behind a norm, scaled, and beside a residual."""

    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.eps)
        self.attention = WindowAttention(config)
        self.attention_scale = nn.Parameter(torch.empty(config.hidden), requires_grad=False)
        self.mlp_norm = RMSNorm(config.hidden, config.eps)
        self.mlp = GatedMLP(config.hidden, config.mlp, TensorParallel(), None)
        self.mlp_scale = nn.Parameter(torch.empty(config.hidden), requires_grad=False)

    def forward(self, x: torch.Tensor, memory: Memory, seen: Seen) -> torch.Tensor:
        """`[batch * frames, hidden]` to the same."""
        x = x.addcmul(self.attention(self.attention_norm(x), memory, seen), self.attention_scale)
        return x.addcmul(self.mlp(self.mlp_norm(x)), self.mlp_scale)


class Seen:
    """What all layers of one pass share: rotary factors, and which frames each frame sees.

    cos, sin: `[batch * frames, 1, head_dim]`, the sines signed as `rotate` takes them.
    mask: bool `[batch, 1, frames, window - 1 + frames]`.
    """

    def __init__(self, config: Code2WavConfig, past: torch.Tensor, frames: int, dtype: torch.dtype) -> None:
        reach = config.window - 1
        new = torch.arange(frames, device=past.device)
        positions = past[:, None] + new  # [batch, frames]
        rates = frequencies(config.head_dim, config.theta, None).to(past.device)
        angles = (positions.flatten()[:, None].float() * rates)[:, None]  # [batch * frames, 1, head_dim / 2]
        self.cos = torch.cat([angles.cos()] * 2, -1).to(dtype)
        self.sin = torch.cat([-angles.sin(), angles.sin()], -1).to(dtype)
        keys = torch.arange(-reach, frames, device=past.device)
        distance = new[:, None] - keys  # [frames, reach + frames]
        inside = (distance >= 0) & (distance <= reach)
        self.mask = (inside & (keys + past[:, None, None] >= 0))[:, None]


class WindowTransformer(nn.Module):
    """All layers and the final norm."""

    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(WindowBlock(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps)

    def forward(self, x: torch.Tensor, past: torch.Tensor, memory: Memory) -> torch.Tensor:
        """`[batch, frames, hidden]` to the same, where `past` `[batch]` frames came before."""
        seen = Seen(self.config, past, x.shape[1], x.dtype)
        rows = x.flatten(0, 1)
        for block in self.blocks:
            rows = block(rows, memory, seen)
        normed: torch.Tensor = self.norm(rows)
        return normed.view(x.shape)
