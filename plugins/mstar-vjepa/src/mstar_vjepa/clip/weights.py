"""Which tensors of Hugging Face's layout make up the parts of V-JEPA 2, and how a part is loaded.

The names are those of transformers' `VJEPA2Model` and `VJEPA2ForVideoClassification`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import nn

from mstar_core.engines.base import NodeContext
from mstar_core.engines.weights import Piece, Weights, load_weights
from mstar_vjepa.rotary import reorder_and_pack

Names = dict[str, list[Piece]]

_Module = TypeVar("_Module", bound=nn.Module)

_PARTS = ("encoder.", "predictor.", "pooler.", "classifier.")


def load_part(
    build: Callable[[], _Module], context: NodeContext, names: Names, *, parts: Sequence[str], heads: int
) -> _Module:
    """Build a module on `meta` and load the published tensors whose names begin with `parts`.

    `heads` are those of its rotated projections. Raises `CheckpointError` listing all that is amiss.
    """
    prefix = context.config.prefix
    others = [f"{prefix}{part}" if part in _PARTS[:2] else part for part in _PARTS if part not in parts]
    with torch.device("meta"):
        module = build()
    load_weights(
        module,
        Weights.open(context.checkpoint),
        names,
        device=context.device,
        dtype=context.dtype,
        ignore=others,
        filled=reorder_and_pack(heads, context.config.patches.tokens),
    )
    return module


def encoder_names(prefix: str, layers: int) -> Names:
    """The encoder's."""
    theirs = f"{prefix}encoder"
    names = affine("patches", f"{theirs}.embeddings.patch_embeddings.proj")
    names |= affine("norm", f"{theirs}.layernorm")
    for layer in range(layers):
        names |= block_names(f"blocks.{layer}", f"{theirs}.layer.{layer}")
    return names


def predictor_names(prefix: str, layers: int) -> Names:
    """The masked predictor's."""
    theirs = f"{prefix}predictor"
    names = affine("embed", f"{theirs}.embeddings.predictor_embeddings")
    names |= {"mask_tokens": [Piece(f"{theirs}.embeddings.mask_tokens")]}
    names |= affine("norm", f"{theirs}.layernorm") | affine("project", f"{theirs}.proj")
    for layer in range(layers):
        names |= block_names(f"blocks.{layer}", f"{theirs}.layer.{layer}")
    return names


def block_names(ours: str, theirs: str) -> Names:
    """One block of encoder or predictor."""
    qkv = [f"{theirs}.attention.{each}" for each in ("query", "key", "value")]
    return (
        affine(f"{ours}.attention_norm", f"{theirs}.norm1")
        | affine(f"{ours}.attention.qkv", *qkv)
        | affine(f"{ours}.attention.out", f"{theirs}.attention.proj")
        | affine(f"{ours}.mlp_norm", f"{theirs}.norm2")
        | affine(f"{ours}.mlp.up", f"{theirs}.mlp.fc1")
        | affine(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")
    )


def affine(ours: str, *theirs: str) -> Names:
    """Weight and bias of a layer, from one published layer or from several that lie one below the other."""
    return {f"{ours}.{each}": [Piece(f"{name}.{each}") for name in theirs] for each in ("weight", "bias")}
