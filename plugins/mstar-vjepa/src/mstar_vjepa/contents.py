"""The content of a request, sorted and checked: pictures in their order, tensors by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstar_core.errors import InvalidRequest, nearest
from mstar_core.spec.content import MODALITIES, Content, Image, Tensor, Video
from mstar_vjepa.pictures import Frames

Array = NDArray[Any]

MOST_PIXELS = 1 << 28
"""Of all frames of a clip together: 64 frames of 2048 x 2048."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Videos and images as frames uint8 [frames, height, width, 3], and the named tensors."""

    pictures: tuple[Frames, ...]
    tensors: Mapping[str, Array]

    def one_of(self, names: Sequence[str]) -> str | None:
        """Which of the tensors of these names there is; raises `InvalidRequest` for two."""
        there = [name for name in names if name in self.tensors]
        if len(there) > 1:
            raise InvalidRequest(f"{there[0]!r} and {there[1]!r} say the same thing; give one of them", param=there[1])
        return there[0] if there else None


def sort_contents(content: Sequence[Content], names: Sequence[str]) -> Contents:
    """Sort a request's content; tensors may have `names`. Raises `InvalidRequest` for anything else."""
    pictures: list[Frames] = []
    tensors: dict[str, Array] = {}
    for piece in content:
        match piece:
            case Video(frames=frames):
                pictures.append(checked_frames(frames, "input"))
            case Image(pixels=pixels):
                pictures.append(checked_frames(pixels[None], "input"))
            case Tensor(name=name, array=array) if name in names and name not in tensors:
                tensors[name] = np.asarray(array)
            case Tensor(name=name):
                problem = "is there twice" if name in tensors else f"is not known{nearest(name, names)}"
                raise InvalidRequest(f"tensor {name!r} {problem}; tensors may be {', '.join(names)}", param=name)
            case _:
                kind = MODALITIES[type(piece)]
                raise InvalidRequest(f"'input' holds {kind}; videos, images and tensors are taken", param="input")
    return Contents(tuple(pictures), tensors)


def checked_frames(frames: Array, name: str) -> Frames:
    """Frames uint8 [frames, height, width, 3], none of them 0, as a clip; one picture may lack the first axis."""
    frames = frames[None] if frames.ndim == 3 else frames
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
        raise _misshapen(name, "uint8 [frames, height, width, 3], none of them 0", frames)
    if math.prod(frames.shape[:3]) > MOST_PIXELS:
        raise _misshapen(name, f"at most {MOST_PIXELS} pixels over all frames", frames)
    return frames


def checked_numbers(array: Array, name: str, *sizes: int | None) -> NDArray[np.float32]:
    """Finite numbers of a shape as float32; None stands for any size but 0."""
    fits = array.ndim == len(sizes) and all(
        array.shape[axis] == size if size is not None else array.shape[axis] > 0 for axis, size in enumerate(sizes)
    )
    if not fits or array.dtype.kind not in "fiu":
        wanted = ", ".join("n" if size is None else str(size) for size in sizes)
        raise _misshapen(name, f"float32 [{wanted}]", array)
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32)
    if not np.isfinite(numbers).all():
        place = np.argwhere(~np.isfinite(numbers))[0].tolist()
        raise InvalidRequest(
            f"{name!r} must hold finite float32 numbers; {place} holds {array[tuple(place)]}", param=name
        )
    return numbers


def checked_mask(array: Array, name: str, tokens: int) -> NDArray[np.int64]:
    """Token numbers [n], each from 0 to `tokens` - 1 and none twice."""
    if array.dtype.kind not in "iu" or array.ndim != 1 or not array.size:
        raise _misshapen(name, "int64 [n], n at least 1", array)
    if int(array.min()) < 0 or int(array.max()) >= tokens:
        wrong = int(array.min()) if int(array.min()) < 0 else int(array.max())
        raise InvalidRequest(f"{name!r} names token {wrong}; the clip has tokens 0 to {tokens - 1}", param=name)
    numbers, counts = np.unique(array, return_counts=True)
    if counts.max() > 1:
        raise InvalidRequest(f"{name!r} names token {numbers[counts.argmax()]} twice", param=name)
    return array.astype(np.int64)


def _misshapen(name: str, wanted: str, array: Array) -> InvalidRequest:
    return InvalidRequest(f"{name!r} must be {wanted}; got {array.dtype} {list(array.shape)}", param=name)
