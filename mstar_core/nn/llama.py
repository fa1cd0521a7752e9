"""Llama: a stack of attention and gated MLP blocks over paged KV (Touvron et al., 2023, arXiv:2302.13971)."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.attention.base import KVLayout
from mstar_core.engines.base import TensorParallel
from mstar_core.engines.step import Step
from mstar_core.engines.weights import Piece, Weights, load_weights
from mstar_core.nn.activations import gated_silu
from mstar_core.nn.linear import Linear, Reduce, pack, shard_size
from mstar_core.nn.llama_config import LlamaConfig
from mstar_core.nn.norm import RMSNorm
from mstar_core.nn.rotary import RopeScaling, RotaryTable, rotation


class SelfAttention(nn.Module):
    """Grouped-query attention with one fused projection."""

    def __init__(self, config: LlamaConfig, layer: int, parallel: TensorParallel, reduce: Reduce | None) -> None:
        super().__init__()
        self.layer = layer
        self.heads = shard_size(config.heads, parallel.size)
        self.kv_heads = shard_size(config.kv_heads, parallel.size)
        self.head_dim = config.head_dim
        self._rotate = rotation()
        widths = [config.heads * config.head_dim, *[config.kv_heads * config.head_dim] * 2]
        self.qkv = Linear(config.hidden, widths, parallel=parallel)
        self.out = Linear(widths[0], [config.hidden], split="inputs", parallel=parallel, reduce=reduce)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step: Step) -> torch.Tensor:
        """`[tokens, hidden] -> [tokens, hidden]`."""
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)  # [tokens, heads + 2 kv_heads, head_dim]
        rotated = self._rotate(heads[:, : self.heads + self.kv_heads], cos, sin)
        queries, keys = rotated[:, : self.heads], rotated[:, self.heads :]
        attended = step.attend(self.layer, queries, keys, heads[:, self.heads + self.kv_heads :])
        output: torch.Tensor = self.out(attended.reshape(x.shape[0], -1))
        return output


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))` with gate and up fused (Shazeer, 2020, arXiv:2002.05202)."""

    def __init__(self, hidden: int, width: int, parallel: TensorParallel, reduce: Reduce | None) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, [width, width], parallel=parallel)
        self.down = Linear(width, [hidden], split="inputs", parallel=parallel, reduce=reduce)
        self._gate = gated_silu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[tokens, hidden] -> [tokens, hidden]`."""
        output: torch.Tensor = self.down(self._gate(self.gate_up(x)))
        return output


class Block(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: LlamaConfig, layer: int, parallel: TensorParallel, reduce: Reduce | None) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.eps)
        self.attention = SelfAttention(config, layer, parallel, reduce)
        self.mlp_norm = RMSNorm(config.hidden, config.eps)
        self.mlp = GatedMLP(config.hidden, config.mlp, parallel, reduce)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step: Step) -> torch.Tensor:
        """`[tokens, hidden] -> [tokens, hidden]`."""
        x = x + self.attention(self.attention_norm(x), cos, sin, step)
        hidden: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return hidden


class Llama(nn.Module):
    """A decoder of the Llama family; `kv` is what a token leaves in the cache on this rank.

    Embedding, norms and head are whole on every rank; several ranks need a `reduce` (ValueError without).
    """

    def __init__(
        self, config: LlamaConfig, parallel: TensorParallel | None = None, reduce: Reduce | None = None
    ) -> None:
        super().__init__()
        parallel = parallel or TensorParallel()
        self.config = config
        self.kv = KVLayout(
            layers=config.layers, kv_heads=shard_size(config.kv_heads, parallel.size), head_dim=config.head_dim
        )
        self.embedding = nn.Parameter(torch.empty(config.vocab, config.hidden), requires_grad=False)
        self.blocks = nn.ModuleList(Block(config, layer, parallel, reduce) for layer in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps)
        self.head = Linear(config.hidden, [config.vocab])
        if config.tied:
            self.head.weight = self.embedding
        self.rotary: RotaryTable | None = None

    def prepare(self) -> None:
        """Compute the rotary table and tie the head: once, after the weights are there.

        A tied head keeps a packed copy of the embedding beside it, since it is the largest matrix that a step reads.
        """
        config, weight = self.config, self.embedding
        if config.tied:
            self.head.weight = weight
            self.head.pack()
        scaling = None
        if config.scaling is not None:
            factor, low, high, original = config.scaling
            scaling = RopeScaling(
                factor=factor, low_freq_factor=low, high_freq_factor=high, original_positions=original
            )
        self.rotary = RotaryTable(
            config.head_dim, config.theta, config.positions, scaling, device=weight.device, dtype=weight.dtype
        )

    def forward(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        """Hidden states after the final norm, `[tokens, hidden]`, for ids `[tokens]` int64."""
        return self.states(F.embedding(ids, self.embedding), step)

    def states(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Hidden states after the final norm for embeddings `[tokens, hidden]`."""
        assert self.rotary is not None, "prepare() was not called"
        cos, sin = self.rotary.at(step.positions)
        for block in self.blocks:
            x = block(x, cos, sin, step)
        hidden: torch.Tensor = self.norm(x)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, vocab]` float32 for hidden states `[rows, hidden]`."""
        logits: torch.Tensor = self.head(hidden).float()
        return logits


def load_llama(
    directory: Path,
    config: LlamaConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    parallel: TensorParallel | None = None,
    reduce: Reduce | None = None,
) -> Llama:
    """Build on `meta`, load the published tensors one by one, pack each layer as soon as it is there.

    Raises `CheckpointError` listing all that is amiss.
    """
    with torch.device("meta"):
        model = Llama(config, parallel, reduce)
    load_weights(
        model,
        Weights.open(directory),
        llama_names(config),
        device=device,
        dtype=dtype,
        parallel=parallel,
        ignore=("lm_head",) if config.tied else (),
        filled=pack,
    )
    model.prepare()
    return model


def llama_names(config: LlamaConfig) -> dict[str, list[Piece]]:
    """Which published tensors make up each parameter, by Hugging Face's names."""
    names = {
        "embedding": [Piece("model.embed_tokens.weight")],
        "norm.weight": [Piece("model.norm.weight")],
    }
    if not config.tied:
        names["head.weight"] = [Piece("lm_head.weight")]
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        projections = [Piece(f"{theirs}.self_attn.{each}_proj.weight", split=0) for each in "qkv"]
        names |= {
            f"{ours}.attention_norm.weight": [Piece(f"{theirs}.input_layernorm.weight")],
            f"{ours}.attention.qkv.weight": projections,
            f"{ours}.attention.out.weight": [Piece(f"{theirs}.self_attn.o_proj.weight", split=1)],
            f"{ours}.mlp_norm.weight": [Piece(f"{theirs}.post_attention_layernorm.weight")],
            f"{ours}.mlp.gate_up.weight": [
                Piece(f"{theirs}.mlp.{each}_proj.weight", split=0) for each in ("gate", "up")
            ],
            f"{ours}.mlp.down.weight": [Piece(f"{theirs}.mlp.down_proj.weight", split=1)],
        }
    return names
