"""Which published tensors make up each parameter of the talker and of its code predictor."""

from __future__ import annotations

from mstar_core.engines.weights import Piece
from mstar_qwen_omni.config import DenseDecoderConfig, TalkerConfig
from mstar_qwen_omni.decoder import decoder_names

_PREDICTOR = "talker.code_predictor"


def talker_names(config: TalkerConfig) -> dict[str, list[Piece]]:
    """Pieces by parameter of `Talker`."""
    names = {
        "embedding": [Piece("talker.model.codec_embedding.weight")],
        "head.weight": [Piece("talker.codec_head.weight")],
    }
    for projection in ("text_projection", "hidden_projection"):
        for ours, theirs in (("up", "linear_fc1"), ("down", "linear_fc2")):
            names[f"{projection}.{ours}.weight"] = [Piece(f"talker.{projection}.{theirs}.weight")]
            names[f"{projection}.{ours}.bias"] = [Piece(f"talker.{projection}.{theirs}.bias")]
    names |= decoder_names("decoder", "talker.model", config.decoder)
    return names | {f"predictor.{name}": pieces for name, pieces in predictor_names(config.predictor).items()}


def predictor_names(config: DenseDecoderConfig) -> dict[str, list[Piece]]:
    """Pieces by parameter of `CodePredictor`."""
    residuals = range(config.groups - 1)
    names = {
        "tables": [Piece(f"{_PREDICTOR}.model.codec_embedding.{group}.weight") for group in residuals],
        "norm.weight": [Piece(f"{_PREDICTOR}.model.norm.weight")],
    }
    names |= {f"heads.{group}.weight": [Piece(f"{_PREDICTOR}.lm_head.{group}.weight")] for group in residuals}
    for layer in range(config.layers):
        names |= _predictor_block(f"blocks.{layer}", f"{_PREDICTOR}.model.layers.{layer}")
    return names


def _predictor_block(ours: str, theirs: str) -> dict[str, list[Piece]]:
    return {
        f"{ours}.attention_norm.weight": [Piece(f"{theirs}.input_layernorm.weight")],
        f"{ours}.attention.qkv.weight": [Piece(f"{theirs}.self_attn.{each}_proj.weight") for each in "qkv"],
        f"{ours}.attention.out.weight": [Piece(f"{theirs}.self_attn.o_proj.weight")],
        f"{ours}.attention.query_norm.weight": [Piece(f"{theirs}.self_attn.q_norm.weight")],
        f"{ours}.attention.key_norm.weight": [Piece(f"{theirs}.self_attn.k_norm.weight")],
        f"{ours}.mlp_norm.weight": [Piece(f"{theirs}.post_attention_layernorm.weight")],
        f"{ours}.mlp.gate_up.weight": [Piece(f"{theirs}.mlp.{each}_proj.weight") for each in ("gate", "up")],
        f"{ours}.mlp.down.weight": [Piece(f"{theirs}.mlp.down_proj.weight")],
    }
