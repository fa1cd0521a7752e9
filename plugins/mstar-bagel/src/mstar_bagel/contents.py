"""A request's content, checked: texts and pictures in their order, and the noises that tests bring. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mstar_bagel.vision.pictures import Picture
from mstar_core.errors import InvalidRequest, nearest
from mstar_core.spec.content import MODALITIES, Content, Image, Tensor, Text

NOISES = ("noise", "posterior_noise")
"""Tensors that stand for what is drawn from the seed: of the picture to be made, and of each given one."""

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Contents:
    """`items` are texts and pictures uint8 [height, width, 3]; `noises` float32 arrays by name, in their order."""

    items: list[str | Picture] = field(default_factory=list)
    noises: dict[str, list[Floats]] = field(default_factory=dict)

    @property
    def pictures(self) -> list[Picture]:
        """The pictures alone."""
        return [item for item in self.items if not isinstance(item, str)]


def sort_contents(content: Sequence[Content]) -> Contents:
    """Sort a request's content; raises `InvalidRequest` for what the model does not take."""
    found = Contents()
    for piece in content:
        match piece:
            case Text(text=text):
                found.items.append(_checked_text(text))
            case Image(pixels=pixels):
                found.items.append(_checked_picture(pixels))
            case Tensor(name=name, array=array) if name in NOISES:
                found.noises.setdefault(name, []).append(np.asarray(array, np.float32))
            case Tensor(name=name):
                known = f"tensors may be {', '.join(NOISES)}"
                raise InvalidRequest(f"tensor {name!r} is not known{nearest(name, NOISES)}; {known}", param=name)
            case _:
                kind = MODALITIES[type(piece)]
                raise InvalidRequest(f"'input' holds {kind}; texts and images are taken", param="input")
    if not found.items:
        raise InvalidRequest("'input' holds neither text nor image", param="input")
    return found


def _checked_text(text: str) -> str:
    if not text.strip():
        raise InvalidRequest("'input' holds a blank text", param="input")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"'input' holds half a character at position {error.start}", param="input") from error
    return text


def _checked_picture(pixels: Picture) -> Picture:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        shape = list(pixels.shape)
        raise InvalidRequest(f"'input' holds pixels {pixels.dtype} {shape}; uint8 [h, w, 3] is taken", param="input")
    return pixels
