"""The shape of a V-JEPA 2 checkpoint in Hugging Face's layout: `config.json` and `video_preprocessor_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar_core.checkpoints import read_config
from mstar_vjepa.config import CHANNELS, MEAN, STD, PatchConfig, TowerConfig

_HEAD = "VJEPA2ForVideoClassification"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """The classifier: self-attention blocks before its pooler, and the labels' names in order."""

    layers: int
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureConfig:
    """How frames become the encoder's pixels: shorter side to `shortest`, centre crop, mean and deviation."""

    shortest: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipConfig:
    """Encoder, masked predictor with `mask_tokens` learned tokens, and the head if there is one."""

    patches: PatchConfig
    encoder: TowerConfig
    predictor: TowerConfig
    mask_tokens: int
    pictures: PictureConfig
    head: HeadConfig | None
    dtype: str

    @property
    def prefix(self) -> str:
        """What the names of encoder and predictor weights begin with."""
        return "vjepa2." if self.head else ""

    @classmethod
    def read(cls, checkpoint: Path) -> ClipConfig:
        """Read a checkpoint directory; raises `CheckpointError`."""
        path = checkpoint / "video_preprocessor_config.json"
        pictures = read_config(path, dict) if path.is_file() else {}
        return read_config(checkpoint / "config.json", lambda values: cls.parse(values, pictures))

    @classmethod
    def parse(cls, values: Mapping[str, Any], pictures: Mapping[str, Any]) -> ClipConfig:
        """From the files' values; raises KeyError for what is missing and ValueError for what is not supported."""
        if values["model_type"] != "vjepa2":
            raise ValueError(f"model_type is {values['model_type']!r}, not 'vjepa2'")
        if values.get("hidden_act", "gelu") != "gelu" or not values.get("qkv_bias", True):
            raise ValueError("only gelu and biased projections are supported")
        if values.get("in_chans", CHANNELS) != CHANNELS:
            raise ValueError(f"in_chans is {values['in_chans']}; pictures have {CHANNELS} channels")
        crop = values["crop_size"]
        return cls(
            patches=PatchConfig(height=crop, width=crop, size=values["patch_size"], tubelet=values["tubelet_size"]),
            encoder=_tower(values, "hidden_size", "num_hidden_layers", "num_attention_heads", "mlp_ratio"),
            predictor=_tower(
                values, "pred_hidden_size", "pred_num_hidden_layers", "pred_num_attention_heads", "pred_mlp_ratio"
            ),
            mask_tokens=values["pred_num_mask_tokens"],
            pictures=_pictures(pictures, crop),
            head=_head(values) if _HEAD in values.get("architectures", ()) else None,
            dtype=values.get("dtype") or values.get("torch_dtype") or "float32",
        )


def _tower(values: Mapping[str, Any], hidden: str, layers: str, heads: str, ratio: str) -> TowerConfig:
    return TowerConfig(
        layers=values[layers],
        hidden=values[hidden],
        heads=values[heads],
        mlp=int(values[hidden] * values[ratio]),
        eps=values["layer_norm_eps"],
    )


def _head(values: Mapping[str, Any]) -> HeadConfig:
    names = {int(index): str(name) for index, name in values["id2label"].items()}
    return HeadConfig(layers=values["num_pooler_layers"], labels=tuple(names[index] for index in range(len(names))))


def _pictures(values: Mapping[str, Any], crop: int) -> PictureConfig:
    """The processor makes the shorter side 256/224 of the crop (transformers, `VJEPA2VideoProcessor`)."""
    given = values.get("crop_size", {"height": crop})
    side = given["height"] if isinstance(given, Mapping) else given
    if side != crop:
        raise ValueError(f"the preprocessor crops to {side} pixels, the model's positions are for {crop}")
    return PictureConfig(
        shortest=int(crop * 256 / 224),
        mean=tuple(values.get("image_mean", MEAN)),
        std=tuple(values.get("image_std", STD)),
    )
