"""Which published tensors make up each parameter of code2wav."""

from __future__ import annotations

from mstar_qwen_omni.config import Code2WavConfig
from mstar_qwen_omni.speech.code2wav.convolutions import DILATIONS


def code2wav_names(config: Code2WavConfig) -> dict[str, list[str]]:
    """Published names by ours; those that lie one below the other in one parameter, in order."""
    names = {
        "embedding": ["code2wav.code_embedding.weight"],
        "transformer.norm.weight": ["code2wav.pre_transformer.norm.weight"],
    }
    for layer in range(config.layers):
        names |= _block(f"transformer.blocks.{layer}", f"code2wav.pre_transformer.layers.{layer}")
    for index in range(len(config.ratios)):
        names |= _convnext(f"ratios.{index}", f"code2wav.upsample.{index}")
    names |= _linear("first", "code2wav.decoder.0.conv")
    for index in range(len(config.rates)):
        names |= _snake_stage(f"rates.{index}", f"code2wav.decoder.{index + 1}.block")
    after = len(config.rates) + 1
    return names | _snake("snake", f"code2wav.decoder.{after}") | _linear("last", f"code2wav.decoder.{after + 1}.conv")


def _block(ours: str, theirs: str) -> dict[str, list[str]]:
    return {
        f"{ours}.attention_norm.weight": [f"{theirs}.input_layernorm.weight"],
        f"{ours}.attention.qkv.weight": [f"{theirs}.self_attn.{each}_proj.weight" for each in "qkv"],
        f"{ours}.attention.out.weight": [f"{theirs}.self_attn.o_proj.weight"],
        f"{ours}.attention_scale": [f"{theirs}.self_attn_layer_scale.scale"],
        f"{ours}.mlp_norm.weight": [f"{theirs}.post_attention_layernorm.weight"],
        f"{ours}.mlp.gate_up.weight": [f"{theirs}.mlp.{each}_proj.weight" for each in ("gate", "up")],
        f"{ours}.mlp.down.weight": [f"{theirs}.mlp.down_proj.weight"],
        f"{ours}.mlp_scale": [f"{theirs}.mlp_layer_scale.scale"],
    }


def _convnext(ours: str, theirs: str) -> dict[str, list[str]]:
    return {
        **_linear(f"{ours}.stretch", f"{theirs}.0.conv"),
        **_linear(f"{ours}.depthwise", f"{theirs}.1.dwconv.conv"),
        **_linear(f"{ours}.norm", f"{theirs}.1.norm"),
        **_linear(f"{ours}.up", f"{theirs}.1.pwconv1"),
        **_linear(f"{ours}.down", f"{theirs}.1.pwconv2"),
        f"{ours}.scale": [f"{theirs}.1.gamma"],
    }


def _snake_stage(ours: str, theirs: str) -> dict[str, list[str]]:
    names = _snake(f"{ours}.snake", f"{theirs}.0") | _linear(f"{ours}.stretch", f"{theirs}.1.conv")
    for index in range(len(DILATIONS)):
        unit, published = f"{ours}.units.{index}", f"{theirs}.{index + 2}"
        names |= {
            **_snake(f"{unit}.snake", f"{published}.act1"),
            **_linear(f"{unit}.conv", f"{published}.conv1.conv"),
            **_snake(f"{unit}.second_snake", f"{published}.act2"),
            **_linear(f"{unit}.pointwise", f"{published}.conv2.conv"),
        }
    return names


def _snake(ours: str, theirs: str) -> dict[str, list[str]]:
    return {f"{ours}.{each}": [f"{theirs}.{each}"] for each in ("alpha", "beta")}


def _linear(ours: str, theirs: str) -> dict[str, list[str]]:
    return {f"{ours}.{each}": [f"{theirs}.{each}"] for each in ("weight", "bias")}
