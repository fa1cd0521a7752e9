"""The shape of a Llama, read from a Hugging Face `config.json` in either of its spellings. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar_core.checkpoints import read_config


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of a decoder of the Llama family. `scaling` holds the llama3 rope scaling's numbers, or is None."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    positions: int
    eps: float
    theta: float
    scaling: tuple[float, float, float, int] | None
    tied: bool
    dtype: str

    @classmethod
    def read(cls, directory: Path) -> LlamaConfig:
        """Read `directory/config.json`; raises `CheckpointError` that names the file and key."""
        return read_config(directory / "config.json", cls.parse)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> LlamaConfig:
        """From the JSON's values; raises KeyError for what is missing and ValueError for what is not supported."""
        if values["model_type"] != "llama":
            raise ValueError(f"model_type is {values['model_type']!r}, not 'llama'")
        if values.get("hidden_act", "silu") != "silu" or values.get("attention_bias") or values.get("mlp_bias"):
            raise ValueError("only silu without biases is supported")
        rope = {**(values.get("rope_scaling") or {}), **(values.get("rope_parameters") or {})}
        heads = values["num_attention_heads"]
        return cls(
            layers=values["num_hidden_layers"],
            hidden=values["hidden_size"],
            heads=heads,
            kv_heads=values.get("num_key_value_heads", heads),
            head_dim=values.get("head_dim") or values["hidden_size"] // heads,
            mlp=values["intermediate_size"],
            vocab=values["vocab_size"],
            positions=values["max_position_embeddings"],
            eps=values["rms_norm_eps"],
            theta=rope["rope_theta"] if "rope_theta" in rope else values["rope_theta"],
            scaling=_scaling(rope),
            tied=values.get("tie_word_embeddings", False),
            dtype=values.get("dtype") or values.get("torch_dtype") or "float32",
        )


def _scaling(rope: Mapping[str, Any]) -> tuple[float, float, float, int] | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rope_type {kind!r} is not supported; default and llama3 are")
    return (
        rope["factor"],
        rope["low_freq_factor"],
        rope["high_freq_factor"],
        rope["original_max_position_embeddings"],
    )
