"""Rotary position embedding (Su et al., 2021, arXiv:2104.09864), on one axis or several.

The `llama3` frequency scaling is that of Llama 3.1 as Hugging Face transformers computes it: wavelengths beyond
`original_positions / low_freq_factor` are stretched by `factor`, those below `original_positions / high_freq_factor`
are kept, and those between are blended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from mstar_core.engines.kernels import current_kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Parameters of the `llama3` scaling."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> torch.Tensor:
    """Radians per position of each pair of channels, `[head_dim / 2]` float32."""
    plain = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if scaling is None:
        return plain
    wavelengths = 2 * math.pi / plain
    low = scaling.original_positions / scaling.low_freq_factor
    high = scaling.original_positions / scaling.high_freq_factor
    blend = (scaling.original_positions / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - blend) * plain / scaling.factor + blend * plain
    stretched = torch.where(wavelengths > low, plain / scaling.factor, between)
    return torch.where(wavelengths < high, plain, stretched)


class RotaryTable:
    """Cosines and sines of every position, computed once."""

    def __init__(
        self,
        head_dim: int,
        theta: float,
        positions: int,
        scaling: RopeScaling | None = None,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        angles = torch.arange(positions).float()[:, None] * frequencies(head_dim, theta, scaling)
        self.cos = torch.cat([angles.cos(), angles.cos()], dim=-1).to(device, dtype)  # [positions, head_dim]
        sin = angles.sin()
        self.sin = torch.cat([-sin, sin], dim=-1).to(device, dtype)  # [positions, head_dim]

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines for positions `[tokens]`: two of `[tokens, 1, head_dim]`, for `rotate`."""
        return self.cos.index_select(0, positions)[:, None], self.sin.index_select(0, positions)[:, None]


class SectionedRotary:
    """Rotary positions with several axes (time, height, width) that share the channels, interleaved.

    With n axes, pair j of channels turns by axis a > 0 where `j % n == a` and `j < n * sections[a]`, and by axis 0
    elsewhere: the interleaved MRoPE of Qwen3-VL and Qwen3-Omni (Hugging Face transformers, `apply_interleaved_mrope`).
    Positions may be fractions, so nothing is tabulated.
    """

    def __init__(
        self, head_dim: int, theta: float, sections: Sequence[int], *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._frequencies = frequencies(head_dim, theta, None).to(device)  # [head_dim / 2]
        self._axes = torch.tensor(interleaved_axes(sections), device=device)  # [head_dim / 2]
        self._dtype = dtype

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines for positions `[axes, tokens]`: two of `[tokens, 1, head_dim]`, for `rotate`."""
        # Contiguous, so that every element takes the same code path and a token's bits do not depend on the others.
        angles = positions.t().float().index_select(1, self._axes) * self._frequencies  # [tokens, head_dim / 2]
        cos, sin = angles.cos(), angles.sin()
        doubled = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        return doubled[0].to(self._dtype)[:, None], doubled[1].to(self._dtype)[:, None]


def interleaved_axes(sections: Sequence[int]) -> list[int]:
    """The axis that turns each pair of channels; `sections` counts the pairs of each axis."""
    count = len(sections)
    return [pair % count if pair < count * sections[pair % count] else 0 for pair in range(sum(sections))]


Rotation: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]"


def rotation() -> Rotation:
    """`rotate`, or the compiled kernel that does the same in place where a node is built to use kernels."""
    kernels = current_kernels()
    return rotate if kernels is None else kernels.rotate


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads `[tokens, heads, head_dim]`; channel i is paired with channel i + head_dim / 2."""
    half = x.shape[-1] // 2
    return x * cos + x.roll(half, -1) * sin
