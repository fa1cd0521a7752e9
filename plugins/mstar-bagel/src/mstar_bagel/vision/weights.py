"""Which published tensors make up the ViT and the autoencoder, and how they are loaded.

The ViT's are in `ema.safetensors`, the autoencoder's in `ae.safetensors`; the checkpoint's index names both files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import nn

from mstar_core.engines.base import NodeContext
from mstar_core.engines.weights import Piece, Weights, load_weights

Names = dict[str, list[Piece]]

_Module = TypeVar("_Module", bound=nn.Module)

_VIT = "vit_model.vision_model"


def load_part(
    build: Callable[[], _Module],
    context: NodeContext,
    names: Callable[[nn.Module], Names],
    dtype: torch.dtype,
    filled: Callable[[nn.Module], None],
) -> _Module:
    """Build a module on `meta` and load it; `filled` is called with each of its submodules.

    What other nodes load of the checkpoint is passed over. Raises `CheckpointError` listing all that is amiss.
    """
    with torch.device("meta"):
        module = build()
    weights = Weights.open(context.checkpoint)
    pieces = names(module)
    load_weights(
        module,
        weights,
        pieces,
        device=context.device,
        dtype=dtype,
        ignore=_others(weights.shapes, pieces),
        filled=filled,
    )
    return module


def vit_names(module: nn.Module) -> Names:
    """A `VisionTower`'s."""
    names = _affine("embed", f"{_VIT}.embeddings.patch_embedding") | _affine("norm", f"{_VIT}.post_layernorm")
    names |= _affine("connector.up", "connector.fc1") | _affine("connector.down", "connector.fc2")
    names |= {"positions": [Piece(f"{_VIT}.embeddings.position_embedding.weight")]}
    names |= {"llm_positions": [Piece("vit_pos_embed.pos_embed")]}
    for layer, _ in enumerate(module.get_submodule("blocks").children()):
        names |= _block(f"blocks.{layer}", f"{_VIT}.encoder.layers.{layer}")
    return names


def autoencoder_names(half: str) -> Callable[[nn.Module], Names]:
    """Those of an `Encoder` or a `Decoder`; `half` is `encoder` or `decoder`."""

    def names(module: nn.Module) -> Names:
        return {name: _convolutions(f"{half}.{name}") for name, _ in module.named_parameters()}

    return names


def channels_last(module: nn.Module) -> None:
    """Lay a convolution's weight out as oneDNN and cuDNN compute it."""
    if isinstance(module, nn.Conv2d):
        laid = module.weight.to(memory_format=torch.channels_last)
        module.weight = nn.Parameter(laid, requires_grad=False)


def _convolutions(published: str) -> list[Piece]:
    """A tensor of the autoencoder; queries, keys and values lie one below the other."""
    if ".qkv." in published:
        return [Piece(published.replace(".qkv.", f".{each}.")) for each in "qkv"]
    return [Piece(published)]


def _block(ours: str, theirs: str) -> Names:
    qkv = [f"{theirs}.self_attn.{each}_proj" for each in "qkv"]
    return (
        _affine(f"{ours}.attention_norm", f"{theirs}.layer_norm1")
        | _affine(f"{ours}.attention.qkv", *qkv)
        | _affine(f"{ours}.attention.out", f"{theirs}.self_attn.out_proj")
        | _affine(f"{ours}.mlp_norm", f"{theirs}.layer_norm2")
        | _affine(f"{ours}.mlp.up", f"{theirs}.mlp.fc1")
        | _affine(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")
    )


def _affine(ours: str, *theirs: str) -> Names:
    """Weight and bias of a layer, from one published layer or from several that lie one below the other."""
    return {f"{ours}.{each}": [Piece(f"{name}.{each}") for name in theirs] for each in ("weight", "bias")}


def _others(shapes: Mapping[str, object], pieces: Mapping[str, Sequence[Piece]]) -> list[str]:
    """First parts of the names of which the module takes none."""
    taken = {piece.name.split(".")[0] for each in pieces.values() for piece in each}
    return sorted({f"{first}." for first in (name.split(".")[0] for name in shapes) if first not in taken})
