"""Rotary positions on three axes, time, height and width, as the reference's `get_rope_index` gives them: floats.

A prompt is a row of blocks. Words and sounds advance by one on every axis. A picture's tokens share a time and lie on
its rows and columns; a clip's are as far apart in time as its steps are. The block after one starts one behind the
largest position in it, or, where clip and sound are interleaved, behind the largest in what is left of one when the
other has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mstar_qwen_omni.prompt.pieces import Film, Still

Positions = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Positions from the block's start, `[3, tokens]`; the last `tail` of them say where the next block starts."""

    steps: Positions
    tail: int


def running(tokens: int) -> Block:
    """Tokens one behind the other: words, the marks around media, sounds."""
    return Block(np.broadcast_to(np.arange(tokens, dtype=np.float32), (3, tokens)), tokens)


def still(picture: Still) -> Block:
    """A picture."""
    steps = _grid(1, picture.rows, picture.columns, np.float32(0))
    return Block(steps, steps.shape[1])


def film(clip: Film, per_second: float) -> tuple[Block, NDArray[np.bool_]]:
    """A clip, with its sound in between if it is heard, and which of the tokens are sound, bool `[tokens]`.

    Sound and pictures are ordered by time, pictures first where they meet.
    """
    seen = _grid(clip.steps, clip.rows, clip.columns, np.float32(clip.seconds) * np.float32(per_second))
    if not clip.sound:
        return Block(seen, seen.shape[1]), np.zeros(seen.shape[1], np.bool_)
    heard = running(clip.sound).steps
    times = np.repeat(np.arange(clip.steps) * (clip.seconds * per_second), clip.rows * clip.columns)
    order = np.argsort(np.concatenate([times, np.arange(clip.sound)]), kind="stable")
    is_sound = order >= seen.shape[1]  # [tokens]
    tail = int(np.argmin((is_sound == is_sound[-1])[::-1]))
    return Block(np.concatenate([seen, heard], axis=1)[:, order], tail), is_sound


def place(blocks: Iterable[Block]) -> Positions:
    """All blocks one behind the other, float32 `[3, tokens]`."""
    start = np.float32(0)
    placed = []
    for block in blocks:
        if block.tail:
            placed.append(block.steps + start)
            start = placed[-1][:, -block.tail :].max() + np.float32(1)
    return np.concatenate(placed, axis=1)


def _grid(steps: int, rows: int, columns: int, step: np.float32) -> Positions:
    """Positions of grids `step` apart, `[3, steps * rows * columns]`."""
    axes = (np.arange(steps, dtype=np.float32) * step, np.arange(rows), np.arange(columns))
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")]).astype(np.float32)
