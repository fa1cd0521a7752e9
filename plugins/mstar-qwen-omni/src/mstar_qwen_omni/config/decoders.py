"""Decoders: the mixtures of experts of thinker and talker, and the dense one that predicts residual codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A Qwen3-MoE decoder, all of whose layers are mixtures.

    `sections` counts the rotary frequencies of the axes time, height, width. `shared_width` is 0 where there is no
    shared expert; `normalised` says that the weights of a token's experts sum to 1. `inner` is the width of dense
    layers, which the talker's projections have, too.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int
    normalised: bool
    inner: int
    vocab: int
    positions: int
    eps: float
    theta: float
    sections: tuple[int, int, int]

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> DecoderConfig:
        """From a `text_config`; raises KeyError for what is missing, ValueError for what is not supported."""
        _check_plain(values)
        if values.get("mlp_only_layers") or values.get("decoder_sparse_step", 1) != 1:
            raise ValueError("every layer must be a mixture of experts (mlp_only_layers, decoder_sparse_step)")
        rope = rope_of(values)
        return cls(
            layers=values["num_hidden_layers"],
            hidden=values["hidden_size"],
            heads=values["num_attention_heads"],
            kv_heads=values["num_key_value_heads"],
            head_dim=values["head_dim"],
            experts=_experts(values),
            experts_per_token=values["num_experts_per_tok"],
            expert_width=values["moe_intermediate_size"],
            shared_width=values.get("shared_expert_intermediate_size") or 0,
            normalised=values["norm_topk_prob"],
            inner=values["intermediate_size"],
            vocab=values["vocab_size"],
            positions=values["max_position_embeddings"],
            eps=values["rms_norm_eps"],
            theta=rope["rope_theta"],
            sections=_sections(rope, values["head_dim"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseDecoderConfig:
    """A Qwen3 decoder with gated MLPs: the talker's code predictor, of `groups` codes a frame."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    groups: int
    eps: float
    theta: float

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> DenseDecoderConfig:
        """From a `code_predictor_config`; raises KeyError for what is missing, ValueError for what is not supported."""
        _check_plain(values)
        if set(values.get("layer_types") or ()) - {"full_attention"}:
            raise ValueError("only layer_types of full_attention are supported")
        return cls(
            layers=values["num_hidden_layers"],
            hidden=values["hidden_size"],
            heads=values["num_attention_heads"],
            kv_heads=values["num_key_value_heads"],
            head_dim=values["head_dim"],
            mlp=values["intermediate_size"],
            vocab=values["vocab_size"],
            groups=values["num_code_groups"],
            eps=values["rms_norm_eps"],
            theta=rope_of(values)["rope_theta"],
        )


def rope_of(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary settings in one mapping: `rope_parameters`, or `rope_theta` beside `rope_scaling`.

    Raises ValueError for scaled frequencies and KeyError without a `rope_theta`.
    """
    rope = {**(values.get("rope_scaling") or {}), **(values.get("rope_parameters") or {})}
    if "rope_theta" not in rope:
        rope["rope_theta"] = values["rope_theta"]
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "mrope"):  # older files call sections of default frequencies mrope
        raise ValueError(f"rope_type {kind!r} is not supported; default is")
    return rope


def _check_plain(values: Mapping[str, Any]) -> None:
    if values.get("hidden_act", "silu") != "silu" or values.get("attention_bias"):
        raise ValueError("only silu without biases is supported")
    if values.get("tie_word_embeddings") or values.get("use_sliding_window"):
        raise ValueError("neither tied embeddings nor a sliding window is supported")


def _experts(values: Mapping[str, Any]) -> int:
    """The library's own files call the talker's experts local ones, the published file does not."""
    experts: int = values["num_experts"] if "num_experts" in values else values["num_local_experts"]
    return experts


def _sections(rope: Mapping[str, Any], head_dim: int) -> tuple[int, int, int]:
    time, height, width = rope["mrope_section"]
    if not rope.get("interleaved", rope.get("mrope_interleaved", False)):
        raise ValueError("only interleaved rotary sections are supported")
    if time + height + width != head_dim // 2:
        raise ValueError(f"mrope_section {[time, height, width]} does not sum to half of head_dim {head_dim}")
    return time, height, width
