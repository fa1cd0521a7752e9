"""The language model's weights by their published names (ByteDance-Seed/BAGEL-7B-MoT, `ema.safetensors`)."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from mstar_bagel.config import BagelConfig
from mstar_bagel.llm.backbone import Backbone
from mstar_bagel.llm.experts import Experts
from mstar_core.engines.base import NodeContext
from mstar_core.engines.weights import Piece, Weights, load_weights
from mstar_core.nn.linear import pack
from mstar_core.nn.packing import BATCH_HINT

_OTHERS = ("vit_model.", "connector.", "vit_pos_embed.", "encoder.", "decoder.")
"""What else the checkpoint holds: the ViT with its connector, and the autoencoder."""

_SUFFIXES = {"und": "", "gen": "_moe_gen"}
"""What the published names of each expert's layers end with."""


def load_backbone(context: NodeContext) -> Backbone:
    """Build on `meta`, load tensor by tensor, pack each layer as soon as it is there.

    Raises `CheckpointError` listing all that is amiss.
    """
    config: BagelConfig = context.config
    with torch.device("meta"):
        model = Backbone(config)
    load_weights(
        model,
        Weights.open(context.checkpoint),
        backbone_names(config),
        device=context.device,
        dtype=context.dtype,
        ignore=_OTHERS,
        filled=partial(_pack, wide=_latent_layers(model), rows=config.latent_side**2),
    )
    model.prepare()
    return model


def backbone_names(config: BagelConfig) -> dict[str, list[Piece]]:
    """Which published tensors make up each parameter."""
    model = "language_model.model"
    names = {
        "embedding": [Piece(f"{model}.embed_tokens.weight")],
        "head.weight": [Piece("language_model.lm_head.weight")],
        "latents.positions": [Piece("latent_pos_embed.pos_embed")],
        **_linear("latents.token", "vae2llm"),
        **_linear("latents.velocity", "llm2vae"),
        **_linear("latents.time_up", "time_embedder.mlp.0"),
        **_linear("latents.time_down", "time_embedder.mlp.2"),
    }
    for expert, suffix in _SUFFIXES.items():
        names[f"norm.{expert}.weight"] = [Piece(f"{model}.norm{suffix}.weight")]
        for layer in range(config.llm.layers):
            names |= _layer(f"blocks.{layer}", f"{model}.layers.{layer}", expert, suffix)
    return names


def _layer(ours: str, theirs: str, expert: str, suffix: str) -> dict[str, list[Piece]]:
    attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp{suffix}"
    return {
        f"{ours}.attention_norm.{expert}.weight": [Piece(f"{theirs}.input_layernorm{suffix}.weight")],
        **{
            f"{ours}.attention.qkv.{expert}.{kind}": [Piece(f"{attention}.{p}_proj{suffix}.{kind}") for p in "qkv"]
            for kind in ("weight", "bias")
        },
        f"{ours}.attention.query_norm.{expert}.weight": [Piece(f"{attention}.q_norm{suffix}.weight")],
        f"{ours}.attention.key_norm.{expert}.weight": [Piece(f"{attention}.k_norm{suffix}.weight")],
        f"{ours}.attention.out.{expert}.weight": [Piece(f"{attention}.o_proj{suffix}.weight")],
        f"{ours}.mlp_norm.{expert}.weight": [Piece(f"{theirs}.post_attention_layernorm{suffix}.weight")],
        f"{ours}.mlp.{expert}.gate_up.weight": [Piece(f"{mlp}.{each}_proj.weight") for each in ("gate", "up")],
        f"{ours}.mlp.{expert}.down.weight": [Piece(f"{mlp}.down_proj.weight")],
    }


def _linear(ours: str, theirs: str) -> dict[str, list[Piece]]:
    return {f"{ours}.{kind}": [Piece(f"{theirs}.{kind}")] for kind in ("weight", "bias")}


def _latent_layers(model: Backbone) -> frozenset[nn.Module]:
    """The layers that see whole pictures of latent tokens at a time."""
    experts = [module.gen for module in model.modules() if isinstance(module, Experts)]
    return frozenset(layer for expert in experts for layer in expert.modules())


def _pack(layer: nn.Module, *, wide: frozenset[nn.Module], rows: int) -> None:
    """Pack a layer for as many rows as it will mostly be given."""
    pack(layer, rows if layer in wide else BATCH_HINT)
