"""Receptive-field arithmetic: which rows each layer needs for a range of samples. Integers only, torch-free.

Time runs through the decoder at several rates: latents, then each block's output, then samples. A *row* is one time
step of one of these. All convolutions pad with zeros at both ends of what they are given, so a layer that is asked
for `rows` reads the grown range clipped to what exists.

A transposed convolution of rate r has kernel 2r and padding ceil(r / 2): output row t is made of the input rows q - 1
and q with q = (t + padding) // r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from mstar_orpheus.codec.config import DILATIONS, KERNEL, SnacConfig


@dataclass(frozen=True, slots=True)
class Rows:
    """The half-open range of rows `start` to `stop`."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def grow(self, each_side: int) -> Rows:
        """The range with `each_side` more rows before and after it."""
        return Rows(self.start - each_side, self.stop + each_side)

    def clip(self, length: int) -> Rows:
        """The part of the range that lies in 0 to `length`."""
        return Rows(max(self.start, 0), min(self.stop, length))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRows:
    """Rows of one decoder block: what it reads, what its upsampling makes, what each residual unit makes."""

    inputs: Rows
    upsampled: Rows
    units: tuple[Rows, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderRows:
    """Rows of every stage for one range of samples; `hidden` is the first two convolutions' output."""

    hidden: Rows
    blocks: tuple[BlockRows, ...]
    samples: Rows


def upsampling_padding(rate: int) -> int:
    """Padding of the transposed convolution of `rate`."""
    return math.ceil(rate / 2)


@lru_cache(maxsize=256)
def plan_rows(config: SnacConfig, latents: int, samples: Rows) -> DecoderRows:
    """What each stage has to compute so that `samples` of a window of `latents` latents come out."""
    if not 0 <= samples.start < samples.stop <= latents * config.hop:
        raise ValueError(
            f"samples {samples.start} to {samples.stop} do not lie in a window of {latents} latents, "
            f"which has samples 0 to {latents * config.hop}"
        )
    length = latents * config.hop
    wanted = samples.grow(KERNEL // 2).clip(length)
    blocks: list[BlockRows] = []
    for rate in reversed(config.decoder_rates):
        block = _plan_block(wanted, length, rate)
        blocks.insert(0, block)
        wanted, length = block.inputs, length // rate
    return DecoderRows(hidden=wanted, blocks=tuple(blocks), samples=samples)


def left_reach(config: SnacConfig) -> int:
    """The first sample that zeros before the window do not touch, in a window cut at a latent's border."""
    return _edge(config, [rate - upsampling_padding(rate) for rate in config.decoder_rates])


def right_reach(config: SnacConfig) -> int:
    """How many samples at the window's end are touched by zeros after it."""
    return _edge(config, [upsampling_padding(rate) for rate in config.decoder_rates])


def _plan_block(wanted: Rows, length: int, rate: int) -> BlockRows:
    units = [wanted]
    for dilation in reversed(DILATIONS):
        units.insert(0, units[0].grow(dilation * (KERNEL // 2)).clip(length))
    upsampled, padding = units[0], upsampling_padding(rate)
    inputs = Rows((upsampled.start + padding) // rate - 1, (upsampled.stop - 1 + padding) // rate + 1)
    return BlockRows(inputs=inputs.clip(length // rate), upsampled=upsampled, units=tuple(units[1:]))


def _edge(config: SnacConfig, overlaps: list[int]) -> int:
    """Rows at one end that depend on what lies beyond it, from the latents to the samples.

    `overlaps[i]` is how far block i's upsampling carries the edge beyond `rate` rows for every row.
    """
    edge = KERNEL // 2
    for rate, overlap in zip(config.decoder_rates, overlaps, strict=True):
        edge = edge * rate + overlap + sum(DILATIONS) * (KERNEL // 2)
    return edge + KERNEL // 2
