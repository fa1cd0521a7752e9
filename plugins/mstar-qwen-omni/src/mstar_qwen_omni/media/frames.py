"""Which frames of a clip are seen, and how much time a step of them stands for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mstar_core.spec.content import Video

FEWEST, MOST = 4, 768
"""Frames of a clip that has as many (transformers, `Qwen2VLVideoProcessor.min_frames`, `max_frames`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The chosen frames uint8 [frames, height, width, 3], and the seconds that each step of `depth` frames lasts."""

    frames: NDArray[np.uint8]
    seconds: float


def seen(video: Video, rate: float, depth: int) -> Seen:
    """`rate` frames a second of a clip, whole steps of `depth` frames, at equal distances from the first on.

    The choice is that of transformers' `Qwen2VLVideoProcessor.sample_frames`, which takes a step for `depth / rate`
    seconds. That holds here for all clips of which neither bound nor the clip's own rate has changed the number of
    frames; of others a step lasts what its frames really do.
    """
    count = len(video.frames)
    length = count / video.rate  # seconds
    if count < depth:
        return Seen(video.frames, depth / video.rate)
    wanted = length * rate
    taken = min(max(wanted, FEWEST), MOST, count)
    kept = max(math.floor(taken / depth) * depth, depth)
    chosen = np.arange(kept) * count // kept
    seconds = depth / rate if taken == wanted else depth * length / kept
    return Seen(video.frames[chosen], seconds)
