"""Pictures from clients to RGB arrays: JPEG, PNG, WebP and GIF, still or animated, by Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import PIL.Image
import PIL.ImageOps
from numpy.typing import NDArray

from mstar_core.media.errors import MediaTooLarge, UnreadableMedia
from mstar_core.media.limits import DEFAULT_LIMITS, MediaLimits
from mstar_core.media.picking import picked, thinned
from mstar_core.media.sniff import IMAGES, first_bytes, kind_of

_READABLE = "jpeg, png, webp or gif"

_FRAME_SECONDS = 0.1
"""How long a frame of an animation that names no time is shown: what browsers do with a GIF's 0."""

_BOMBS = (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning)


class UndecodableImage(UnreadableMedia):
    """The bytes are not a picture that can be read; the message says what they are. A client's mistake: 400."""


def decode_image(data: bytes, *, limits: MediaLimits = DEFAULT_LIMITS) -> NDArray[np.uint8]:
    """Decode a picture: uint8 [height, width, 3], RGB; of an animation the first frame.

    Turned as its EXIF orientation says; alpha is laid on white; 16 bits become 8. Colour profiles are not applied.
    Raises `UndecodableImage` for bytes that are no readable picture, or a cut or damaged one, and `MediaTooLarge`,
    before any pixel is decoded. Frontend only.
    """
    limits.check_file(data)
    with _opened(data, limits) as image:
        return _rgb(PIL.ImageOps.exif_transpose(image))


def decode_animation(
    data: bytes, *, limits: MediaLimits = DEFAULT_LIMITS, most: int | None = None
) -> tuple[NDArray[np.uint8], float]:
    """Decode every frame of a picture, or `most` of them at equal distances: uint8 [frames, height, width, 3].

    With the mean number of frames a second; a picture that stands still is one frame at 1. Errors as `decode_image`.
    """
    if kind_of(data) == "jpeg":  # several pictures in a JPEG (MPO) are views or previews, not a film
        return decode_image(data, limits=limits)[np.newaxis], 1.0
    limits.check_file(data)
    with _opened(data, limits) as image:
        count: int = getattr(image, "n_frames", 1)
        if count == 1:
            return _rgb(PIL.ImageOps.exif_transpose(image))[np.newaxis], 1.0
        limits.check_scanned(count, *image.size)
        limits.check_kept(count if most is None else min(count, most), *image.size)
        places = {number: place for place, number in enumerate(picked(count, most))}
        frames = np.empty((len(places), image.height, image.width, 3), np.uint8)
        seconds = 0.0
        for index in range(count):
            image.seek(index)
            image.load()  # a WebP knows its times only then
            seconds += image.info.get("duration", 0) / 1000 or _FRAME_SECONDS
            limits.check_seconds(seconds)
            if index in places:
                frames[places[index]] = _rgb(image)
        return frames, thinned(count / seconds, count, len(places))


@contextmanager
def _opened(data: bytes, limits: MediaLimits) -> Iterator[PIL.Image.Image]:
    kind = kind_of(data)
    if kind not in IMAGES:
        raise UndecodableImage(f"the bytes are not a picture that can be read ({first_bytes(data)}); send {_READABLE}")
    try:
        with PIL.Image.open(io.BytesIO(data), formats=[kind.upper()]) as image:
            limits.check_frame(*image.size)
            yield image
    except (UndecodableImage, MediaTooLarge, MemoryError):
        raise
    except _BOMBS:
        raise MediaTooLarge(f"a frame has more pixels than the {limits.frame_pixels} that are taken") from None
    except Exception as error:  # an isolation boundary: parsers of damaged files raise whatever they run into
        raise UndecodableImage(f"the {kind} data cannot be decoded: {error}") from error


def _rgb(image: PIL.Image.Image) -> NDArray[np.uint8]:
    """The picture as it looks on white paper: uint8 [height, width, 3]."""
    if image.mode.startswith("I"):  # 16 bits of grey
        image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        paper = PIL.Image.new("RGBA", image.size, "white")
        paper.alpha_composite(image.convert("RGBA"))
        image = paper
    return np.array(image.convert("RGB"))
