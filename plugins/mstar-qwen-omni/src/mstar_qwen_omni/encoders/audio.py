"""The audio tower: mel features, convolved in chunks, through a transformer that attends in windows.

A sound's chunks are right-padded with zeros to one width before they are convolved, and what the convolutions' biases
make of the padding leaks into the steps before it. The reference pads to the longest chunk of a request; `width` says
to which here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.nn.linear import Linear
from mstar_core.nn.transformer import LayerNorm, TransformerBlock
from mstar_qwen_omni.config import AudioConfig
from mstar_qwen_omni.encoders.groups import attend_inside
from mstar_qwen_omni.encoders.rows import rows_of, steps_of

_TIMESCALE = 10000.0

_CONVOLVED_TOGETHER = 500
"""Chunks whose intermediate values are in memory at the same time (the reference's `conv_chunksize`)."""


class Convolutions(nn.Module):
    """Three convolutions over time and frequency, `[chunks, mel, frames] -> [chunks, steps, hidden]`."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        channels = (1, config.channels, config.channels, config.channels)
        self.layers = nn.ModuleList(
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1) for inputs, outputs in itertools.pairwise(channels)
        )
        self.out = Linear(config.channels * steps_of(config.mel_bins), [config.hidden])

    def forward(self, chunks: torch.Tensor) -> torch.Tensor:
        """Positions are not added yet."""
        return torch.cat([self._convolve(part) for part in torch.split(chunks, _CONVOLVED_TOGETHER)])

    def _convolve(self, chunks: torch.Tensor) -> torch.Tensor:
        # oneDNN convolves a lone chunk otherwise than several: beside a copy of itself it comes to the same bits.
        x = chunks[:, None] if len(chunks) > 1 else chunks.expand(2, -1, -1)[:, None]  # [chunks, 1, mel, frames]
        for layer in self.layers:
            x = F.gelu(layer(x))
        rows = x[: len(chunks)].permute(0, 3, 1, 2).flatten(2)  # [chunks, steps, channels * mel / 8]
        projected: torch.Tensor = self.out(rows.flatten(0, 1))
        return projected.view(*rows.shape[:2], -1)


@dataclass(frozen=True, slots=True)
class Heard:
    """One sound: `features` [mel, frames], and the frames `width` that its chunks are padded to."""

    features: torch.Tensor
    width: int


class AudioTower(nn.Module):
    """Sounds to rows for the thinker."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.config = config
        self.convolutions = Convolutions(config)
        self.blocks = nn.ModuleList(
            TransformerBlock(config.hidden, config.heads, config.mlp, config.eps, layer)
            for layer in range(config.layers)
        )
        self.norm = LayerNorm(config.hidden, config.eps)
        self.inner = Linear(config.hidden, [config.hidden], bias=True)
        self.outer = Linear(config.hidden, [config.output], bias=True)

    def forward(self, sounds: Sequence[Heard]) -> list[torch.Tensor]:
        """Each sound's rows, `[rows_of(frames), output]`. All sounds have the same `width`, and a frame at least."""
        chunks, steps = self._chunks(sounds)
        convolved = self.convolutions(chunks)  # [chunks, steps, hidden]
        convolved = convolved + _sinusoids(convolved.shape[1], self.config.hidden).to(convolved)
        x = torch.cat([chunk[:count] for chunk, count in zip(convolved, steps, strict=True)])  # [rows, hidden]
        counts = [rows_of(sound.features.shape[1], self.config.chunk) for sound in sounds]
        attend = attend_inside([length for rows in counts for length in self._windows(rows)], x.device)
        for block in self.blocks:
            x = block(x, attend)
        rows: torch.Tensor = self.outer(self.inner.gelu(self.norm(x)))
        return list(torch.split(rows, counts))

    def _chunks(self, sounds: Sequence[Heard]) -> tuple[torch.Tensor, list[int]]:
        """All chunks, `[chunks, mel, width]`, and the steps of each that are no padding."""
        width, dtype = sounds[0].width, self.norm.weight.dtype
        parts = [part for sound in sounds for part in torch.split(sound.features.to(dtype), self.config.chunk, dim=1)]
        padded = torch.stack([F.pad(part, (0, width - part.shape[1])) for part in parts])
        return padded, [steps_of(part.shape[1]) for part in parts]

    def _windows(self, rows: int) -> list[int]:
        """Rows of each attention window of a sound."""
        window = steps_of(self.config.chunk) * self.config.chunks_per_window
        whole, rest = divmod(rows, window)
        return [window] * whole + [rest] * (rest > 0)


def _sinusoids(steps: int, width: int) -> torch.Tensor:
    """Positions of a chunk's steps, `[steps, width]`: sines, then cosines (Radford et al., 2022, arXiv:2212.04356)."""
    half = width // 2
    scales = torch.exp(-math.log(_TIMESCALE) / (half - 1) * torch.arange(half))
    angles = torch.arange(steps)[:, None] * scales
    return torch.cat([angles.sin(), angles.cos()], dim=1)
