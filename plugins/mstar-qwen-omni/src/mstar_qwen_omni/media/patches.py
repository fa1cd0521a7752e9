"""Pictures and clips to patches: resize and cut. NumPy and Pillow.

As transformers' `Qwen2VLImageProcessor` with Pillow. Its video processor resizes with torchvision, whose bicubic may
round to the next of the 256 levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from mstar_core.errors import InvalidRequest
from mstar_qwen_omni.media.settings import PictureSettings

Pixels = NDArray[np.uint8]

_MOST_STRETCHED = 200
"""The reference refuses pictures whose sides differ by more."""

FRAME_MIN_PIXELS, FRAME_MAX_PIXELS = 128 * 32 * 32, 768 * 32 * 32
"""Of a clip's frames: 128 to 768 tokens (transformers, `Qwen3OmniMoeProcessor.videos_kwargs`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """`values` uint8 [steps * rows * columns, width]: patches of one picture or clip.

    They are normalised where they are encoded: as bytes they travel in a quarter of the space.

    A patch's values are in the order channel, frame, row, column. Patches come by step, and in a step by blocks of
    `merge` x `merge`, which become one token.
    """

    values: Pixels
    grid: tuple[int, int, int]


def image_patches(pixels: Pixels, settings: PictureSettings) -> Patches:
    """A picture uint8 [height, width, 3]: one step, in which it stands still."""
    size = fitted(pixels.shape[0], pixels.shape[1], settings, settings.min_pixels, settings.max_pixels)
    return _cut(np.repeat(_resized(pixels, size)[None], settings.frames, 0), settings)


def clip_patches(frames: Pixels, settings: PictureSettings) -> Patches:
    """A clip uint8 [frames, height, width, 3]; its last frame is repeated until the steps are whole."""
    size = fitted(frames.shape[1], frames.shape[2], settings, FRAME_MIN_PIXELS, FRAME_MAX_PIXELS)
    missing = -len(frames) % settings.frames
    resized = [_resized(frame, size) for frame in frames]
    return _cut(np.stack([*resized, *[resized[-1]] * missing]), settings)


def fitted(height: int, width: int, settings: PictureSettings, fewest: int, most: int) -> tuple[int, int]:
    """The height and width, whole tokens each, between `fewest` and `most` pixels, nearest to a picture's.

    The rule is that of transformers' `smart_resize`. Raises `InvalidRequest` for a picture that is too narrow.
    """
    if max(height, width) > _MOST_STRETCHED * min(height, width):
        raise InvalidRequest(
            f"a picture of {width} x {height} pixels is too narrow: at most {_MOST_STRETCHED} times as long as wide",
            param="input",
        )
    side = settings.side
    rows, columns = round(height / side), round(width / side)
    if rows * columns * side**2 > most:
        shrink = math.sqrt(height * width / most)
        rows, columns = (max(1, math.floor(each / shrink / side)) for each in (height, width))
    elif rows * columns * side**2 < fewest:
        grow = math.sqrt(fewest / (height * width))
        rows, columns = (math.ceil(each * grow / side) for each in (height, width))
    return rows * side, columns * side


def _resized(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    if pixels.shape[:2] == size:
        return pixels
    image = PIL.Image.fromarray(pixels).resize((size[1], size[0]), PIL.Image.Resampling.BICUBIC)
    return np.asarray(image)


def _cut(frames: Pixels, settings: PictureSettings) -> Patches:
    """Frames of whole blocks and steps."""
    patch, merge, depth = settings.patch, settings.merge, settings.frames
    steps, rows, columns = len(frames) // depth, frames.shape[1] // patch, frames.shape[2] // patch
    blocks = frames.reshape(steps, depth, rows // merge, merge, patch, columns // merge, merge, patch, 3)
    # [steps, block rows, block columns, merge, merge, channels, frames, patch, patch]
    ordered = blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return Patches(np.ascontiguousarray(ordered).reshape(-1, settings.width), (steps, rows, columns))
