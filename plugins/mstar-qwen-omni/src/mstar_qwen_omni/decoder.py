"""The decoder that thinker and talker are: Qwen3 attention and mixtures of experts over paged KV.

Qwen3 normalises queries and keys head by head before the rotation (Yang et al., 2025, arXiv:2505.09388).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from mstar_core.engines.attention.base import KVLayout
from mstar_core.engines.step import Step
from mstar_core.engines.weights import Piece
from mstar_core.nn.linear import Linear
from mstar_core.nn.moe import MixtureOfExperts, moe_names
from mstar_core.nn.norm import RMSNorm
from mstar_core.nn.rotary import SectionedRotary, rotation
from mstar_qwen_omni.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Deepstack:
    """Rows that join the stream after the first layers: `rows[level]` after layer `level` at the tokens `places`."""

    places: torch.Tensor  # [n] int64
    rows: torch.Tensor  # [levels, n, hidden]


@dataclass(frozen=True, slots=True)
class States:
    """Hidden states of a step: after the final norm, and, where a layer was asked for, as it left them."""

    final: torch.Tensor  # [tokens, hidden]
    accepted: torch.Tensor | None  # [tokens, hidden]


class SelfAttention(nn.Module):
    """Grouped-query attention with one fused projection and normalised queries and keys."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        widths = [config.heads * config.head_dim, *[config.kv_heads * config.head_dim] * 2]
        self.qkv = Linear(config.hidden, widths)
        self.query_norm = RMSNorm(config.head_dim, config.eps)
        self.key_norm = RMSNorm(config.head_dim, config.eps)
        self.out = Linear(widths[0], [config.hidden])
        self._rotate = rotation()

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step: Step) -> torch.Tensor:
        """`[tokens, hidden] -> [tokens, hidden]`."""
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)  # [tokens, heads + 2 kv_heads, head_dim]
        queries, keys, values = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        queries = self._rotate(self.query_norm(queries), cos, sin)
        keys = self._rotate(self.key_norm(keys), cos, sin)
        # Kernels take keys and values that lie alike.
        attended = step.attend(self.layer, queries, keys, values.contiguous())
        output: torch.Tensor = self.out(attended.reshape(x.shape[0], -1))
        return output


class Block(nn.Module):
    """Attention and mixture, each behind a norm and beside a residual."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.eps)
        self.attention = SelfAttention(config, layer)
        self.mlp_norm = RMSNorm(config.hidden, config.eps)
        self.mlp = MixtureOfExperts(
            config.hidden,
            config.experts,
            config.experts_per_token,
            config.expert_width,
            normalised=config.normalised,
            shared_width=config.shared_width,
        )

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step: Step) -> torch.Tensor:
        """`[tokens, hidden] -> [tokens, hidden]`."""
        x = x + self.attention(self.attention_norm(x), cos, sin, step)
        hidden: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return hidden


class Decoder(nn.Module):
    """The stack from embeddings to normalised hidden states; `kv` is what a token leaves in the cache."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.kv = KVLayout(layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps)
        self.rotary: SectionedRotary | None = None

    def prepare(self) -> None:
        """Set up the rotation: once, after the weights are there."""
        config, weight = self.config, self.norm.weight
        self.rotary = SectionedRotary(
            config.head_dim, config.theta, config.sections, device=weight.device, dtype=weight.dtype
        )

    def forward(
        self, x: torch.Tensor, step: Step, *, deepstack: Deepstack | None = None, accept: int | None = None
    ) -> States:
        """States for a step's rows `[tokens, hidden]`; `accept` counts layers, 0 being `x` itself.

        What a layer left is taken before deepstack rows are added, as the reference does.
        """
        assert self.rotary is not None, "prepare() was not called"
        cos, sin = self.rotary.at(step.positions)
        accepted = x if accept == 0 else None
        for layer, block in enumerate(self.blocks):
            x = block(x, cos, sin, step)
            if layer + 1 == accept:
                accepted = x
            if deepstack is not None and layer < deepstack.rows.shape[0]:
                x = x.index_add(0, deepstack.places, deepstack.rows[layer])
        return States(self.norm(x), accepted)


def decoder_names(ours: str, theirs: str, config: DecoderConfig) -> dict[str, list[Piece]]:
    """Which published tensors make up a `Decoder`; `ours` is the module's name, `theirs` `thinker.model`, say."""
    names = {f"{ours}.norm.weight": [Piece(f"{theirs}.norm.weight")]}
    for layer in range(config.layers):
        block, published = f"{ours}.blocks.{layer}", f"{theirs}.layers.{layer}"
        attention, attends = f"{block}.attention", f"{published}.self_attn"
        names |= {
            f"{block}.attention_norm.weight": [Piece(f"{published}.input_layernorm.weight")],
            f"{attention}.qkv.weight": [Piece(f"{attends}.{each}_proj.weight") for each in "qkv"],
            f"{attention}.query_norm.weight": [Piece(f"{attends}.q_norm.weight")],
            f"{attention}.key_norm.weight": [Piece(f"{attends}.k_norm.weight")],
            f"{attention}.out.weight": [Piece(f"{attends}.o_proj.weight")],
            f"{block}.mlp_norm.weight": [Piece(f"{published}.post_attention_layernorm.weight")],
            **moe_names(f"{block}.mlp", f"{published}.mlp", config.experts, shared=config.shared_width > 0),
        }
    return names
