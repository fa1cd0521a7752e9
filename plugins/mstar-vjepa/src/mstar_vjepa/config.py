"""What both models have in common: the shape of a vision transformer, and how their JSON files are read. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

_Config = TypeVar("_Config")

CHANNELS = 3
"""Red, green, blue."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's mean and deviation of the channels, which all published checkpoints normalise with."""

_LEAST_HEAD = 12
"""Each of the three axes of the rotary embedding needs two pairs of channels; the reference fails below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerConfig:
    """A stack of transformer blocks."""

    layers: int
    hidden: int
    heads: int
    mlp: int
    eps: float

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.head_dim % 2 or self.head_dim < _LEAST_HEAD:
            raise ValueError(
                f"{self.heads} heads share {self.hidden} channels; an even number of at least {_LEAST_HEAD} per head "
                "is needed"
            )

    @property
    def head_dim(self) -> int:
        """Channels per head."""
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchConfig:
    """How pictures become tokens: `height` by `width` pixels in squares of `size`, `tubelet` frames deep."""

    height: int
    width: int
    size: int
    tubelet: int

    def __post_init__(self) -> None:
        if self.height % self.size or self.width % self.size or min(self.height, self.width) < self.size:
            raise ValueError(f"pictures of {self.height} x {self.width} pixels are no whole patches of {self.size}")

    @property
    def rows(self) -> int:
        """Patches from top to bottom."""
        return self.height // self.size

    @property
    def columns(self) -> int:
        """Patches from left to right."""
        return self.width // self.size

    @property
    def tokens(self) -> int:
        """Tokens of one temporal slot."""
        return self.rows * self.columns
