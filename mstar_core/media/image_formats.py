"""The picture formats a client may ask for, and pixels to the bytes of one, by Pillow."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

DEFAULT_QUALITY = 95
"""Of jpeg and webp: what Pillow's documentation gives as the highest that makes sense for JPEG."""

_LARGEST = {"jpeg": 65_500, "webp": 16_383}
"""The longest side, in pixels, that can be written: what libjpeg allows (`JPEG_MAX_DIMENSION`), and what the 14 bits of
a WebP's header hold (RFC 9649, section 2.5)."""


class UnencodableImage(ValueError):
    """The format cannot hold a picture of that size; the message says which can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFormat:
    """One picture format, as `output_format` names it. `lossy` ones have a quality."""

    name: str
    suffixes: tuple[str, ...]
    lossy: bool

    @property
    def media_type(self) -> str:
        """For Content-Type and data URLs."""
        return f"image/{self.name}"


IMAGE_FORMATS: Mapping[str, ImageFormat] = MappingProxyType(
    {
        format.name: format
        for format in (
            ImageFormat(name="png", suffixes=(".png",), lossy=False),
            ImageFormat(name="jpeg", suffixes=(".jpg", ".jpeg"), lossy=True),
            ImageFormat(name="webp", suffixes=(".webp",), lossy=True),
        )
    }
)


def encode_image(pixels: NDArray[np.uint8], format: str, quality: int = DEFAULT_QUALITY) -> bytes:
    """uint8 [height, width, 3], RGB, as the file of a format of `IMAGE_FORMATS`.

    `quality` (0 to 100) is for the lossy ones; png keeps every pixel. Raises `UnencodableImage` for a picture that is
    too long or wide for the format. Work of the CPU: in an event loop, call it from a thread.
    """
    height, width, _ = pixels.shape
    if max(height, width) > _LARGEST.get(format, max(height, width)):
        raise UnencodableImage(
            f"{format} holds at most {_LARGEST[format]} pixels a side, not {width} x {height}; use png"
        )
    file = io.BytesIO()
    options: dict[str, Any] = {"quality": quality} if IMAGE_FORMATS[format].lossy else {}
    PIL.Image.fromarray(pixels).save(file, format, **options)
    return file.getvalue()
