"""The pictures of a request as what the world model's encoder takes: pixels, or latents that it made before."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstar_core.errors import InvalidRequest
from mstar_vjepa.config import CHANNELS, MEAN, STD
from mstar_vjepa.contents import Array, Contents, checked_frames, checked_numbers
from mstar_vjepa.pictures import Frames, pixels_of_frames
from mstar_vjepa.world.config import MOST_SLOTS, WorldConfig

FORMS = ("frames", "pixels", "latents")
"""The tensors that may stand for pictures."""

GOAL = "goal"
"""A tensor of this name is the goal, in the form that its dtype and shape tell."""

GOALS = (GOAL, *(f"{GOAL}_{form}" for form in FORMS))
"""The tensors that may stand for the goal."""


class FrameReader:
    """Reads what was observed, and the goal."""

    def __init__(self, config: WorldConfig) -> None:
        self._patches = config.patches
        self._width = config.encoder.hidden

    def observed(self, contents: Contents) -> NDArray[np.float32]:
        """Pixels `[frames, 3, height, width]` or latents `[frames, tokens, width]`; raises `InvalidRequest`."""
        name = contents.one_of(FORMS)
        frames = self._read(contents, name, contents.pictures[0] if contents.pictures and name is None else None)
        if frames is None:
            raise InvalidRequest(
                f"nothing was observed: give a video, an image, or a tensor {', '.join(FORMS)}", param="input"
            )
        if len(frames) > MOST_SLOTS:
            raise InvalidRequest(f"{len(frames)} frames are too many; at most {MOST_SLOTS}", param=name or "input")
        return frames

    def goal(self, contents: Contents) -> NDArray[np.float32] | None:
        """The same of one frame, or None; raises `InvalidRequest`."""
        first = 0 if contents.one_of(FORMS) else 1
        pictures = contents.pictures[first:]
        name = contents.one_of(GOALS)
        if len(pictures) + (name is not None) > 1:
            raise InvalidRequest("'input' holds more pictures than the observed frames and one goal", param="input")
        goal = self._read(contents, name, pictures[0] if pictures else None)
        if goal is not None and len(goal) > 1:
            raise InvalidRequest(f"the goal must be one frame, got {len(goal)}", param=name or "input")
        return goal

    def _read(self, contents: Contents, name: str | None, picture: Frames | None) -> NDArray[np.float32] | None:
        if name is None:
            return None if picture is None else self._pixels(picture)
        array = contents.tensors[name]
        match self._form(array) if name == GOAL else name.removeprefix(f"{GOAL}_"):
            case "frames":
                return self._pixels(checked_frames(array, name))
            case "pixels":
                sizes: tuple[int, ...] = (CHANNELS, self._patches.height, self._patches.width)
            case _:
                sizes = (self._patches.tokens, self._width)
        return checked_numbers(_with_frames(array, len(sizes)), name, None, *sizes)

    def _form(self, array: Array) -> str:
        """What an array most likely is: bytes are frames, three channels of a picture's size pixels."""
        if array.dtype == np.uint8:
            return "frames"
        pixels = (CHANNELS, self._patches.height, self._patches.width)
        return "pixels" if array.shape[-3:] == pixels else "latents"

    def _pixels(self, frames: Frames) -> NDArray[np.float32]:
        size = (self._patches.height, self._patches.width)
        return pixels_of_frames(frames, size=size, mean=MEAN, std=STD)


def _with_frames(array: Array, axes: int) -> NDArray[Any]:
    """A single frame may lack the first axis."""
    return array[None] if array.ndim == axes else array
