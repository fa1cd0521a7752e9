"""Pictures to the pixels that the encoders were trained on: resize, crop, normalise. NumPy alone.

Resizing is separable, so it is two products with small matrices; a crop behind it only takes some of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]
Pixels = NDArray[np.float32]

_LEVELS = 255.0


def pixels_of_clip(
    frames: Frames, *, shortest: int, crop: tuple[int, int], mean: Sequence[float], std: Sequence[float]
) -> Pixels:
    """`[frames, height, width, 3] -> [frames, 3, *crop]` as transformers' `VJEPA2VideoProcessor` makes them.

    The shorter side becomes `shortest` with antialiasing, rounded to whole levels; the centre is cropped.
    """
    height, width = frames.shape[1:3]
    scaled = _scaled(height, width, shortest)
    tables = [
        _antialiased(size, new)[_centre(new, kept)]
        for size, new, kept in zip((height, width), scaled, crop, strict=True)
    ]
    resized = np.stack([np.rint(_resize(frame, *tables)) for frame in frames])
    return _normalised(np.clip(resized, 0, _LEVELS), mean, std)


def pixels_of_frames(frames: Frames, *, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]) -> Pixels:
    """`[frames, height, width, 3] -> [frames, 3, *size]` as facebookresearch/vjepa2's `make_transforms` does for AC.

    The largest centred part of the target's shape, resized without antialiasing and without rounding.
    """
    height, width = frames.shape[1:3]
    part = _largest_part(height, width, size)
    frames = frames[:, _centre(height, part[0]), _centre(width, part[1])]
    tables = [_bilinear(old, new) for old, new in zip(part, size, strict=True)]
    return _normalised(np.stack([_resize(frame, *tables) for frame in frames]), mean, std)


def _scaled(height: int, width: int, shortest: int) -> tuple[int, int]:
    if height <= width:
        return shortest, int(shortest * width / height)
    return int(shortest * height / width), shortest


def _largest_part(height: int, width: int, size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the largest part with the proportions of `size`."""
    if height * size[1] <= width * size[0]:
        return height, min(max(round(height * size[1] / size[0]), 1), width)
    return min(max(round(width * size[0] / size[1]), 1), height), width


def _centre(size: int, part: int) -> slice:
    start = (size - part) // 2
    return slice(start, start + part)


def _resize(frame: Frames, vertical: Pixels, horizontal: Pixels) -> Pixels:
    """`[height, width, 3] -> [new height, new width, 3]`; each table is `[new size, size]`."""
    rows = vertical @ frame.reshape(frame.shape[0], -1).astype(np.float32)  # [new height, width * 3]
    resized: Pixels = horizontal @ rows.reshape(len(vertical), *frame.shape[1:])  # [new height, new width, 3]
    return resized


def _normalised(levels: Pixels, mean: Sequence[float], std: Sequence[float]) -> Pixels:
    """`[frames, height, width, 3]` in 0 to 255 to `[frames, 3, height, width]`."""
    middle, width = (_LEVELS * np.array(each, np.float32) for each in (mean, std))
    scaled = (levels - middle) / width
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), np.float32)


def _bilinear(size: int, new: int) -> Pixels:
    """Weights `[new, size]` of two neighbours each; pixels are squares, so centres lie at halves."""
    place = np.maximum((np.arange(new) + 0.5) * (size / new) - 0.5, 0)
    first = np.minimum(place.astype(np.int64), size - 1)
    share = (place - first).astype(np.float32)
    table = np.zeros((new, size), np.float32)
    rows = np.arange(new)
    np.add.at(table, (rows, first), 1 - share)
    np.add.at(table, (rows, np.minimum(first + 1, size - 1)), share)
    return table


def _antialiased(size: int, new: int) -> Pixels:
    """Weights `[new, size]` of a triangle as wide as two new pixels (two old ones where the picture grows)."""
    scale = size / new
    width = max(scale, 1.0)
    centre = (np.arange(new)[:, None] + 0.5) * scale
    distance = np.abs(np.arange(size)[None] + 0.5 - centre) / width
    table = np.maximum(1 - distance, 0)
    weights: Pixels = (table / table.sum(1, keepdims=True)).astype(np.float32)
    return weights
