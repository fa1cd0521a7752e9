"""The encoders of sound and of pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_VISION_THETA = 10000.0
"""Base of the vision transformer's rotary frequencies; the published file does not state it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioConfig:
    """The transformer over mel features: convolved in chunks of `chunk` frames, attending in windows of `window`.

    `output` is the width of the rows that the thinker reads.
    """

    mel_bins: int
    layers: int
    hidden: int
    heads: int
    mlp: int
    channels: int
    output: int
    chunk: int
    window: int
    eps: float = 1e-5  # LayerNorm's default, which the reference leaves

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> AudioConfig:
        """From `audio_config`; raises KeyError for what is missing, ValueError for what is not supported."""
        if values.get("activation_function", "gelu") != "gelu" or values.get("scale_embedding"):
            raise ValueError("the audio encoder must use gelu and unscaled embeddings")
        return cls(
            mel_bins=values["num_mel_bins"],
            layers=values["encoder_layers"],
            hidden=values["d_model"],
            heads=values["encoder_attention_heads"],
            mlp=values["encoder_ffn_dim"],
            channels=values["downsample_hidden_size"],
            output=values["output_dim"],
            chunk=2 * values["n_window"],
            window=values["n_window_infer"],
        )

    @property
    def chunks_per_window(self) -> int:
        """How many chunks attend to each other."""
        return self.window // self.chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """The vision transformer: squares of `patch` pixels over `temporal` frames, merged `merge` by `merge`.

    `side` is the side of its square table of positions; after the blocks `deepstack` rows go to the thinker's first
    layers. `output` is the width of the rows that the thinker reads.
    """

    layers: int
    hidden: int
    heads: int
    mlp: int
    channels: int
    patch: int
    temporal: int
    merge: int
    side: int
    output: int
    deepstack: tuple[int, ...]
    theta: float
    eps: float = 1e-6  # of the reference's norms; no file states it

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> VisionConfig:
        """From `vision_config`; raises KeyError for what is missing, ValueError for what is not supported."""
        if values.get("hidden_act", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
            raise ValueError(f"the vision encoder's hidden_act {values['hidden_act']!r} is not supported")
        return cls(
            layers=values["depth"],
            hidden=values["hidden_size"],
            heads=values["num_heads"],
            mlp=values["intermediate_size"],
            channels=values.get("in_channels", 3),
            patch=values["patch_size"],
            temporal=values["temporal_patch_size"],
            merge=values["spatial_merge_size"],
            side=_side(values["num_position_embeddings"]),
            output=values["out_hidden_size"],
            deepstack=tuple(values["deepstack_visual_indexes"]),
            theta=(values.get("rope_parameters") or {}).get("rope_theta", _VISION_THETA),
        )

    @property
    def head_dim(self) -> int:
        """Channels per head."""
        return self.hidden // self.heads

    @property
    def patch_values(self) -> int:
        """Values of one patch, in the order channel, frame, row, column."""
        return self.channels * self.temporal * self.patch * self.patch


def _side(positions: int) -> int:
    side = math.isqrt(positions)
    if side * side != positions:
        raise ValueError(f"num_position_embeddings {positions} is no square")
    return side
