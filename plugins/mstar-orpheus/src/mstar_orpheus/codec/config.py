"""The codec's configuration, read from the `config.json` that is published beside the weights.

SNAC: Siuzdak, Grötschla, Lanzendörfer, "SNAC: Multi-Scale Neural Audio Codec" (2024). The released 24 kHz model has
`decoder_rates` 8, 8, 4, 2 and `vq_strides` 4, 2, 1: one latent is 512 samples, one frame is 4 latents and 7 codes.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

KERNEL = 7
"""Width of every depthwise convolution and of the last one; fixed by the architecture, not in the JSON."""

DILATIONS = (1, 3, 9)
"""Dilations of the three residual units of a decoder block; fixed by the architecture, not in the JSON."""


class SnacConfigError(ValueError):
    """A `config.json` that this decoder cannot run; the message names the file, the key and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnacConfig:
    """The decoder's sizes. Rates are upsampling factors, strides are latents per code, coarsest level first."""

    sampling_rate: int
    encoder_dim: int
    encoder_rates: tuple[int, ...]
    decoder_dim: int
    decoder_rates: tuple[int, ...]
    codebook_size: int
    codebook_dim: int
    vq_strides: tuple[int, ...]

    def __post_init__(self) -> None:
        self._check_positive()
        if math.prod(self.encoder_rates) != self.hop:
            raise SnacConfigError(
                f"encoder_rates {list(self.encoder_rates)} and decoder_rates {list(self.decoder_rates)} must have the "
                "same product: both are the samples of one latent"
            )
        if self.decoder_dim % 2 ** len(self.decoder_rates):
            raise SnacConfigError(
                f"decoder_dim {self.decoder_dim} must be divisible by 2 once per entry of decoder_rates "
                f"({len(self.decoder_rates)} times): every block halves the channels"
            )
        if self.vq_strides[-1] != 1 or any(a % b or a <= b for a, b in pairwise(self.vq_strides)):
            raise SnacConfigError(
                f"vq_strides {list(self.vq_strides)} must fall to 1, each a multiple of the next, as in [4, 2, 1]"
            )

    @property
    def latent_dim(self) -> int:
        """Channels of a latent: the encoder doubles its channels at every rate."""
        return self.encoder_dim << len(self.encoder_rates)

    @property
    def hop(self) -> int:
        """Samples per latent (512)."""
        return math.prod(self.decoder_rates)

    @property
    def latents_per_frame(self) -> int:
        """Latents per frame: the coarsest level's stride (4)."""
        return self.vq_strides[0]

    @property
    def samples_per_frame(self) -> int:
        """Samples per frame (2048, 85.3 ms at 24 kHz)."""
        return self.hop * self.latents_per_frame

    @property
    def slot_levels(self) -> tuple[int, ...]:
        """The level of each slot of a frame, each code followed by the finer codes of its time: 0, 1, 2, 2, 1, 2, 2."""
        return _levels_from(self.vq_strides, 0)

    @property
    def ids_per_frame(self) -> int:
        """Codes, and so audio ids, per frame (7)."""
        return len(self.slot_levels)

    @classmethod
    def read(cls, directory: Path | str) -> SnacConfig:
        """The configuration in `directory/config.json`. Raises `SnacConfigError` naming the file."""
        path = Path(directory) / "config.json"
        try:
            return cls.parse(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise SnacConfigError(
                f"{path}: no such file; a SNAC checkpoint has config.json beside its weights"
            ) from None
        except json.JSONDecodeError as error:
            raise SnacConfigError(f"{path}: not valid JSON ({error})") from error
        except SnacConfigError as error:
            raise SnacConfigError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, values: object) -> SnacConfig:
        """The configuration in the JSON object `values`; keys as in the hub's `snac_24khz/config.json`."""
        if not isinstance(values, Mapping):
            raise SnacConfigError(f"a JSON object was expected, found {type(values).__name__}")
        _check_keys(values, {field.name for field in fields(cls)})
        _check_architecture(values)
        config = cls(
            sampling_rate=_integer(values, "sampling_rate"),
            encoder_dim=_integer(values, "encoder_dim"),
            encoder_rates=_integers(values, "encoder_rates"),
            decoder_dim=_integer(values, "decoder_dim"),
            decoder_rates=_integers(values, "decoder_rates"),
            codebook_size=_integer(values, "codebook_size"),
            codebook_dim=_integer(values, "codebook_dim"),
            vq_strides=_integers(values, "vq_strides"),
        )
        if values.get("latent_dim") not in (None, config.latent_dim):
            raise SnacConfigError(
                f"latent_dim {values['latent_dim']} does not follow from encoder_dim and encoder_rates, "
                f"which give {config.latent_dim}"
            )
        return config

    def _check_positive(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            numbers = value if isinstance(value, tuple) else (value,)
            if not numbers or min(numbers) < 1:
                raise SnacConfigError(f"{field.name} must be positive, found {value}")


# Keys with one supported value, and what another value would mean.
_FIXED = {
    "attn_window_size": (
        None,
        "the 32 and 44 kHz models with local attention are not supported; the 24 kHz one has none",
    ),
    "noise": (True, "only decoders with noise blocks are published"),
    "depthwise": (True, "only decoders with depthwise convolutions are published"),
}


def _levels_from(strides: tuple[int, ...], level: int) -> tuple[int, ...]:
    if level + 1 == len(strides):
        return (level,)
    return (level, *(_levels_from(strides, level + 1) * (strides[level] // strides[level + 1])))


def _check_keys(values: Mapping[str, object], required: set[str]) -> None:
    known = required | {"latent_dim", *_FIXED}
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise SnacConfigError(f"unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if missing := sorted(required - values.keys()):
        raise SnacConfigError(f"missing keys: {', '.join(missing)}")


def _check_architecture(values: Mapping[str, object]) -> None:
    for key, (supported, reason) in _FIXED.items():
        if values.get(key, supported) is not supported:
            raise SnacConfigError(f"{key} is {values[key]!r}, {supported!r} was expected: {reason}")


def _integer(values: Mapping[str, object], key: str) -> int:
    value = values[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise SnacConfigError(f"{key} must be an integer, found {value!r}")
    return value


def _integers(values: Mapping[str, object], key: str) -> tuple[int, ...]:
    value = values[key]
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise SnacConfigError(f"{key} must be a list of integers, found {value!r}")
    return tuple(value)
