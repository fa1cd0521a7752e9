"""Which published tensors make up the two encoders, and how they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import nn

from mstar_core.engines.base import NodeContext
from mstar_core.engines.weights import Piece, Weights, load_weights
from mstar_core.nn.linear import Linear
from mstar_qwen_omni.config import AudioConfig, VisionConfig
from mstar_qwen_omni.encoders.vision import PatchEmbedding

Names = dict[str, list[Piece]]

_Module = TypeVar("_Module", bound=nn.Module)

AUDIO, VISION = "thinker.audio_tower.", "thinker.visual."
"""What the names begin with."""

_ROWS = 256
"""Rows that weights are packed for: a picture has some hundreds, ten seconds of sound have 130."""


def load_encoder(build: Callable[[], _Module], context: NodeContext, names: Names, prefix: str) -> _Module:
    """Build a module on `meta` and fill it; raises `CheckpointError` that lists all that is amiss below `prefix`."""
    weights = Weights.open(context.checkpoint)
    others = sorted(name for name in weights.shapes if not name.startswith(prefix))
    with torch.device("meta"):
        module = build()
    load_weights(module, weights, names, device=context.device, dtype=context.dtype, ignore=others, filled=_pack)
    return module


def audio_names(config: AudioConfig) -> Names:
    """Those of `AudioTower`."""
    names = {"convolutions.out.weight": [Piece(f"{AUDIO}conv_out.weight")]}
    for layer in range(3):
        names |= _affine(f"convolutions.layers.{layer}", f"{AUDIO}conv2d{layer + 1}")
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"{AUDIO}layers.{layer}"
        names |= _affine(f"{ours}.attention.qkv", *(f"{theirs}.self_attn.{each}_proj" for each in "qkv"))
        names |= _renamed(ours, theirs, _AUDIO_BLOCK)
    return names | _renamed("", AUDIO.removesuffix("."), _AUDIO_END)


def vision_names(config: VisionConfig) -> Names:
    """Those of `VisionTower`."""
    names = {"positions.weight": [Piece(f"{VISION}pos_embed.weight")]}
    names |= _affine("patches", f"{VISION}patch_embed.proj")
    for layer in range(config.layers):
        names |= _renamed(f"blocks.{layer}", f"{VISION}blocks.{layer}", _VISION_BLOCK)
    names |= _renamed("merger", f"{VISION}merger", _MERGER)
    for level in range(len(config.deepstack)):
        names |= _renamed(f"deep.{level}", f"{VISION}merger_list.{level}", _MERGER)
    return names


_AUDIO_BLOCK = {
    "attention_norm": "self_attn_layer_norm",
    "attention.out": "self_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}
_AUDIO_END = {"norm": "ln_post", "inner": "proj1", "outer": "proj2"}
_VISION_BLOCK = {
    "attention_norm": "norm1",
    "attention.qkv": "attn.qkv",
    "attention.out": "attn.proj",
    "mlp_norm": "norm2",
    "up": "mlp.linear_fc1",
    "down": "mlp.linear_fc2",
}
_MERGER = {"norm": "ln_q", "inner": "mlp.0", "outer": "mlp.2"}


def _renamed(ours: str, theirs: str, layers: Mapping[str, str]) -> Names:
    names: Names = {}
    for mine, published in layers.items():
        names |= _affine(f"{ours}.{mine}".removeprefix("."), f"{theirs}.{published}")
    return names


def _affine(ours: str, *theirs: str) -> Names:
    """Weight and bias of a layer, from one published layer or from several that lie one below the other."""
    return {f"{ours}.{each}": [Piece(f"{name}.{each}") for name in theirs] for each in ("weight", "bias")}


def _pack(module: nn.Module) -> None:
    if isinstance(module, Linear | PatchEmbedding):
        module.pack(_ROWS)
