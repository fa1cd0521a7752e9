"""The node `classifier`: latents of a clip to logits of its labels, by attentive pooling."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.base import NodeContext
from mstar_core.engines.stateless import TensorNode
from mstar_core.engines.weights import Piece
from mstar_core.nn.linear import Linear
from mstar_core.nn.transformer import GeluMLP, LayerNorm, TransformerBlock, attend_within
from mstar_vjepa.clip.config import ClipConfig
from mstar_vjepa.clip.weights import Names, affine, load_part

_MLP_RATIO = 4
"""Of the pooler's blocks, whatever the encoder's is (transformers, `VJEPA2MLP`)."""


class Pooler(nn.Module):
    """A learned query reads one vector out of a clip's latents.

    The query is not normalised, keys and values are; there is no output projection.
    """

    def __init__(self, hidden: int, heads: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.query_token = nn.Parameter(torch.empty(1, 1, hidden), requires_grad=False)
        self.norm = LayerNorm(hidden, eps)
        self.query = Linear(hidden, [hidden], bias=True)
        self.key_value = Linear(hidden, [hidden] * 2, bias=True)
        self.mlp_norm = LayerNorm(hidden, eps)
        self.mlp = GeluMLP(hidden, _MLP_RATIO * hidden)

    def forward(self, x: torch.Tensor, clips: int) -> torch.Tensor:
        """`[clips * tokens, hidden] -> [clips, hidden]`."""
        asked = self.query_token[0].expand(clips, -1)  # [clips, hidden]
        queries = self.query(asked).view(clips, 1, self.heads, -1).transpose(1, 2)
        keys, values = (
            each.view(clips, -1, self.heads, queries.shape[-1]).transpose(1, 2)
            for each in self.key_value(self.norm(x)).chunk(2, dim=-1)
        )  # [clips, heads, tokens, head_dim] each
        pooled = asked + F.scaled_dot_product_attention(queries, keys, values).reshape(clips, -1)
        result: torch.Tensor = pooled + self.mlp(self.mlp_norm(pooled))
        return result


class Head(nn.Module):
    """Self-attention blocks without positions, the pooler, and a linear layer."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        assert config.head is not None, "the checkpoint has no classifier"
        hidden, heads, eps = config.encoder.hidden, config.encoder.heads, config.encoder.eps
        self.blocks = nn.ModuleList(
            TransformerBlock(hidden, heads, _MLP_RATIO * hidden, eps, layer) for layer in range(config.head.layers)
        )
        self.pooler = Pooler(hidden, heads, eps)
        self.classify = Linear(hidden, [len(config.head.labels)], bias=True)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Logits `[clips, labels]` for latents `[clips, tokens, hidden]`."""
        clips = latents.shape[0]
        x, attend = latents.flatten(0, 1), attend_within(clips)
        for block in self.blocks:
            x = block(x, attend)
        logits: torch.Tensor = self.classify(self.pooler(x, clips))
        return logits


class Classifier(TensorNode):
    """Logits, float32."""

    def __init__(self, context: NodeContext) -> None:
        config: ClipConfig = context.config
        self.device, self.dtype = context.device, context.dtype
        self.model = load_part(
            lambda: Head(config),
            context,
            head_names(config),
            parts=("pooler.", "classifier."),
            heads=config.encoder.heads,
        )

    def compute(self, **inputs: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """`latents` `[clips, tokens, hidden]` to `logits` `[clips, labels]`."""
        return {"logits": self.model(inputs["latents"].to(self.device, self.dtype)).float()}


def head_names(config: ClipConfig) -> Names:
    """The head's published tensors."""
    assert config.head is not None, "the checkpoint has no classifier"
    pooler = "pooler.cross_attention_layer"
    names: Names = {"pooler.query_token": [Piece("pooler.query_tokens")]}
    names |= affine("pooler.norm", f"{pooler}.layer_norm1") | affine("pooler.mlp_norm", f"{pooler}.layer_norm2")
    names |= affine("pooler.query", f"{pooler}.cross_attn.q_proj")
    names |= affine("pooler.key_value", f"{pooler}.cross_attn.k_proj", f"{pooler}.cross_attn.v_proj")
    names |= affine("pooler.mlp.up", f"{pooler}.mlp.fc1") | affine("pooler.mlp.down", f"{pooler}.mlp.fc2")
    names |= affine("classify", "classifier")
    for layer in range(config.head.layers):
        ours, theirs = f"blocks.{layer}", f"pooler.self_attention_layers.{layer}"
        names |= affine(f"{ours}.attention_norm", f"{theirs}.layer_norm1")
        names |= affine(f"{ours}.attention.qkv", *(f"{theirs}.self_attn.{each}_proj" for each in "qkv"))
        names |= affine(f"{ours}.attention.out", f"{theirs}.self_attn.out_proj")
        names |= affine(f"{ours}.mlp_norm", f"{theirs}.layer_norm2")
        names |= affine(f"{ours}.mlp.up", f"{theirs}.mlp.fc1") | affine(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")
    return names
