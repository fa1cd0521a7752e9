"""The decoder: Qwen2 layers with normalised queries and keys, each with two experts, over paged KV."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from mstar_bagel.config import BagelConfig, LlmConfig
from mstar_bagel.llm.experts import Experts, Markers
from mstar_bagel.llm.latents import LatentLayers
from mstar_core.engines.attention.base import KVLayout
from mstar_core.engines.base import TensorParallel
from mstar_core.engines.step import Step
from mstar_core.nn.linear import Linear
from mstar_core.nn.llama import GatedMLP
from mstar_core.nn.norm import RMSNorm
from mstar_core.nn.rotary import RotaryTable, rotation


class SelfAttention(nn.Module):
    """Grouped-query attention with one fused projection; queries and keys are normalised head by head."""

    def __init__(self, config: LlmConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        widths = [config.heads * config.head_dim, *[config.kv_heads * config.head_dim] * 2]
        self.qkv = Experts(lambda: Linear(config.hidden, widths, bias=True))
        self.query_norm = Experts(lambda: RMSNorm(config.head_dim, config.eps))
        self.key_norm = Experts(lambda: RMSNorm(config.head_dim, config.eps))
        self.out = Experts(lambda: Linear(widths[0], [config.hidden]))
        self._rotate = rotation()

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step: Step, markers: Markers
    ) -> torch.Tensor:
        """`[tokens, hidden] -> [tokens, hidden]`."""
        heads = self.qkv(x, markers).view(x.shape[0], -1, self.head_dim)  # [tokens, heads + 2 kv_heads, head_dim]
        queries, keys, values = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        queries = self._rotate(self.query_norm(queries, markers), cos, sin)
        keys = self._rotate(self.key_norm(keys, markers), cos, sin)
        # Kernels take keys and values that lie alike.
        attended = step.attend(self.layer, queries, keys, values.contiguous())
        output: torch.Tensor = self.out(attended.reshape(x.shape[0], -1), markers)
        return output


class Block(nn.Module):
    """Attention and gated MLP, each behind a norm and beside a residual."""

    def __init__(self, config: LlmConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = Experts(lambda: RMSNorm(config.hidden, config.eps))
        self.attention = SelfAttention(config, layer)
        self.mlp_norm = Experts(lambda: RMSNorm(config.hidden, config.eps))
        self.mlp = Experts(lambda: GatedMLP(config.hidden, config.mlp, TensorParallel(), None))

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step: Step, markers: Markers
    ) -> torch.Tensor:
        """`[tokens, hidden] -> [tokens, hidden]`."""
        x = x + self.attention(self.attention_norm(x, markers), cos, sin, step, markers)
        hidden: torch.Tensor = x + self.mlp(self.mlp_norm(x, markers), markers)
        return hidden


class Backbone(nn.Module):
    """The whole language model with the layers that join it to latent tokens; `kv` is what a token leaves in the cache.

    Rows of its input come from `embed` (ids, markers), from the ViT, or from `latents`.
    """

    def __init__(self, config: BagelConfig) -> None:
        super().__init__()
        llm = config.llm
        self.config = llm
        self.kv = KVLayout(layers=llm.layers, kv_heads=llm.kv_heads, head_dim=llm.head_dim)
        self.embedding = nn.Parameter(torch.empty(llm.vocab, llm.hidden), requires_grad=False)
        self.blocks = nn.ModuleList(Block(llm, layer) for layer in range(llm.layers))
        self.norm = Experts(lambda: RMSNorm(llm.hidden, llm.eps))
        self.head = Linear(llm.hidden, [llm.vocab])
        self.latents = LatentLayers(config)
        self.rotary: RotaryTable | None = None

    def prepare(self) -> None:
        """Compute the rotary table: once, after the weights are there."""
        config, weight = self.config, self.embedding
        self.rotary = RotaryTable(
            config.head_dim, config.theta, config.positions, device=weight.device, dtype=weight.dtype
        )

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """`[tokens, hidden]` for ids int64 `[tokens]`."""
        return F.embedding(ids, self.embedding)

    def enclose(self, rows: torch.Tensor, markers: Sequence[int]) -> torch.Tensor:
        """A picture's rows `[tokens, hidden]` between the rows of its two markers, `[tokens + 2, hidden]`."""
        ends = self.embed(torch.tensor(markers, device=rows.device))  # [2, hidden]
        return torch.cat([ends[:1], rows.to(ends.dtype), ends[1:]])

    def forward(self, x: torch.Tensor, step: Step, markers: Markers = None) -> torch.Tensor:
        """Hidden states after the final norm, `[tokens, hidden]`, for a step's rows `[tokens, hidden]`."""
        assert self.rotary is not None, "prepare() was not called"
        cos, sin = self.rotary.at(step.positions)
        for block in self.blocks:
            x = block(x, cos, sin, step, markers)
        hidden: torch.Tensor = self.norm(x, markers)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, vocab]` float32 for hidden states `[rows, hidden]`."""
        logits: torch.Tensor = self.head(hidden).float()
        return logits
