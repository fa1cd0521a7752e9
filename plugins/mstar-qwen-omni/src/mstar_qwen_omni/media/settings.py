"""How a checkpoint wants its media: `preprocessor_config.json`. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar_core.checkpoints import read_config

_FILE = "preprocessor_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundSettings:
    """Mel features: `bands` filters over windows of `window` samples, one every `hop`, at `rate` Hz."""

    rate: int
    bands: int
    window: int
    hop: int

    def __post_init__(self) -> None:
        if min(self.rate, self.bands, self.window, self.hop) < 1:
            raise ValueError("rate, bands, window and hop of sounds must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSettings:
    """Patches of `patch` x `patch` pixels and `frames` frames, `merge` x `merge` of which become one token.

    Pictures are resized to `min_pixels` to `max_pixels` pixels, and normalised by `mean` and `std` of their channels.
    """

    patch: int
    frames: int
    merge: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if min(self.patch, self.frames, self.merge) < 1 or not 0 < self.min_pixels <= self.max_pixels:
            raise ValueError("patches must have a size, and max_pixels must not be less than min_pixels")

    @property
    def side(self) -> int:
        """Pixels of a token's side."""
        return self.patch * self.merge

    @property
    def width(self) -> int:
        """Values of a patch: three channels of `frames` squares."""
        return 3 * self.frames * self.patch**2


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSettings:
    """Both."""

    sound: SoundSettings
    picture: PictureSettings

    @classmethod
    def read(cls, checkpoint: Path) -> MediaSettings:
        """Read a checkpoint directory; raises `CheckpointError` that names the file and what is missing or wrong."""
        return read_config(checkpoint / _FILE, cls.parse)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> MediaSettings:
        """From the file's values; the spellings `min_pixels` and `size.shortest_edge` are the same thing."""
        size = values.get("size", {})
        sound = SoundSettings(
            rate=values["sampling_rate"],
            bands=values["feature_size"],
            window=values["n_fft"],
            hop=values["hop_length"],
        )
        picture = PictureSettings(
            patch=values["patch_size"],
            frames=values["temporal_patch_size"],
            merge=values["merge_size"],
            min_pixels=size.get("shortest_edge") or values["min_pixels"],
            max_pixels=size.get("longest_edge") or values["max_pixels"],
            mean=tuple(values["image_mean"]),
            std=tuple(values["image_std"]),
        )
        return cls(sound=sound, picture=picture)
