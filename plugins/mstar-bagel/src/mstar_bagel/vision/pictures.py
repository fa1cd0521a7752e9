"""Pictures in the sizes that the ViT and the autoencoder take. NumPy and Pillow alone.

The rule is the reference's `MaxLongEdgeMinShortEdgeResize` (github.com/ByteDance-Seed/Bagel, `data/transforms.py`),
with its order of steps, its rounding (halves to even, twice) and its pixel cap, which scales both sides by the ratio of
the areas and so ends well below the cap.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mstar_bagel.config import Limits

Picture = NDArray[np.uint8]
"""`[height, width, 3]`, red, green, blue."""

Size = tuple[int, int]
"""Height and width in pixels."""


def fitted_size(size: Size, limits: Limits) -> Size:
    """The size that a picture is given: multiples of the stride, the longer side at most `limits.longest`.

    The shorter side becomes `limits.shortest` at least, unless the other limits forbid it.
    """
    scale = min(limits.longest / max(size), 1.0)
    size = _scaled(size, max(scale, limits.shortest / min(size)), limits.stride)
    area = size[0] * size[1]
    if area > limits.max_pixels:
        size = _scaled(size, limits.max_pixels / area, limits.stride)
    if max(size) > limits.longest:
        size = _scaled(size, limits.longest / max(size), limits.stride)
    return size


def fit(picture: Picture, limits: Limits) -> Picture:
    """The picture in its fitted size, antialiased bicubic on whole levels; the same array where it fits already."""
    size = fitted_size((picture.shape[0], picture.shape[1]), limits)
    if picture.shape[:2] == size:
        return picture
    resized = Image.fromarray(picture).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return np.array(resized)  # a copy: Pillow's own memory is read-only


def _scaled(size: Size, scale: float, stride: int) -> Size:
    height, width = (max(stride, round(round(side * scale) / stride) * stride) for side in size)
    return height, width
