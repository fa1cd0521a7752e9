"""The parts of a `/generate` request: JSON to content.

    {"type": "text", "text": ...}
    {"type": "tensor", "name": ..., "dtype": ..., "shape": [...], "data": ...}
    {"type": "image", "dtype": "uint8", "shape": [height, width, 3], "data": ...}
    {"type": "video", "dtype": "uint8", "shape": [frames, height, width, 3], "rate": ..., "data": ..., "audio": part}
    {"type": "audio", "dtype": "float32", "shape": [samples], "rate": ..., "data": ...}
    {"type": "audio", "data": ...}    an audio file, its kind read from its first bytes

`data` is base64 of the values in C order, little-endian.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from mstar_core.errors import InvalidRequest, nearest
from mstar_core.media import AudioTooLong, UndecodableAudio, decode_audio
from mstar_core.media.formats import MAX_SAMPLE_RATE, MIN_SAMPLE_RATE
from mstar_core.server.body import shown, validate
from mstar_core.spec.content import Audio, Content, Image, Tensor, Text, Video

_DTYPES = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
)

_MAX_FRAME_RATE = 1000.0
"""A bound on what a client can claim of a video, in frames a second."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    type: str


class _TextPart(_Part):
    text: str


class _FilePart(_Part):
    data: str


class _ArrayPart(_Part):
    dtype: str
    shape: list[int]
    data: str


class _TensorPart(_ArrayPart):
    name: str


class _AudioPart(_ArrayPart):
    dtype: Literal["float32"] = "float32"
    rate: int = Field(ge=MIN_SAMPLE_RATE, le=MAX_SAMPLE_RATE)


class _ImagePart(_ArrayPart):
    dtype: Literal["uint8"] = "uint8"


class _VideoPart(_ImagePart):
    rate: float = Field(gt=0, le=_MAX_FRAME_RATE)
    audio: dict[str, Any] = Field(default_factory=dict)


def content_of(part: object, at: str) -> Content:
    """The content of a client's part; raises `InvalidRequest` whose `param` is the wrong field's path below `at`."""
    if not isinstance(part, Mapping):
        raise InvalidRequest(f"{at!r} must be an object with a 'type', got {shown(part)}", param=at)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _READERS:
        hint = nearest(kind, _READERS) if isinstance(kind, str) else ""
        problem = f"'{at}.type' must be one of {', '.join(_READERS)}; got {shown(kind)}{hint}"
        raise InvalidRequest(problem, param=f"{at}.type")
    return _READERS[kind](part, at)


def _read_text(part: Mapping[str, Any], at: str) -> Text:
    text = validate(_TextPart, part, at).text
    if not text.strip():
        raise InvalidRequest(f"'{at}.text' must hold some text", param=f"{at}.text")
    return Text(text)


def _read_tensor(part: Mapping[str, Any], at: str) -> Tensor:
    fields = validate(_TensorPart, part, at)
    return Tensor(fields.name, _unpacked(fields, at))


def _read_audio(part: Mapping[str, Any], at: str) -> Audio:
    if "rate" in part or "shape" in part:
        fields = validate(_AudioPart, part, at)
        samples = _unpacked(fields, at)
        _require_shape(samples, (None,), at)
        if not np.isfinite(samples).all():
            raise InvalidRequest(f"'{at}.data' must hold finite samples", param=f"{at}.data")
        return Audio(samples, fields.rate)
    file = validate(_FilePart, part, at)
    try:
        return Audio(*decode_audio(_bytes(file.data, at)))
    except (UndecodableAudio, AudioTooLong) as error:
        raise InvalidRequest(f"'{at}.data': {error}", param=f"{at}.data") from None


def _read_image(part: Mapping[str, Any], at: str) -> Image:
    pixels = _unpacked(validate(_ImagePart, part, at), at)
    _require_shape(pixels, (None, None, 3), at)
    return Image(pixels)


def _read_video(part: Mapping[str, Any], at: str) -> Video:
    fields = validate(_VideoPart, part, at)
    frames = _unpacked(fields, at)
    _require_shape(frames, (None, None, None, 3), at)
    return Video(frames, fields.rate, _sound_track(fields, at))


def _sound_track(fields: _VideoPart, at: str) -> Audio | None:
    if "audio" not in fields.model_fields_set:
        return None
    sound = content_of(fields.audio, f"{at}.audio")
    if not isinstance(sound, Audio):
        raise InvalidRequest(f"'{at}.audio.type' must be 'audio'", param=f"{at}.audio.type")
    return sound


_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Content]] = {
    "text": _read_text,
    "audio": _read_audio,
    "image": _read_image,
    "video": _read_video,
    "tensor": _read_tensor,
}


def _unpacked(part: _ArrayPart, at: str) -> NDArray[Any]:
    if part.dtype not in _DTYPES:
        problem = f"'{at}.dtype' must be one of {', '.join(_DTYPES)}; got {shown(part.dtype)}"
        raise InvalidRequest(problem + nearest(part.dtype, _DTYPES), param=f"{at}.dtype")
    if any(size < 0 for size in part.shape):
        raise InvalidRequest(f"'{at}.shape' must hold sizes of at least 0, got {part.shape}", param=f"{at}.shape")
    dtype = np.dtype(part.dtype).newbyteorder("<")
    data = _bytes(part.data, at)
    wanted = math.prod(part.shape) * dtype.itemsize
    if len(data) != wanted:
        problem = f"'{at}.data' holds {len(data)} bytes; {part.dtype} {part.shape} takes {wanted}"
        raise InvalidRequest(problem, param=f"{at}.data")
    return np.frombuffer(data, dtype).reshape(part.shape).astype(dtype.newbyteorder("="))


def _bytes(data: str, at: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"'{at}.data' is not valid base64: {error}", param=f"{at}.data") from None


def _require_shape(array: NDArray[Any], sizes: tuple[int | None, ...], at: str) -> None:
    fits = array.ndim == len(sizes) and all(size in (None, array.shape[axis]) for axis, size in enumerate(sizes))
    if not fits or not array.size:
        wanted = ", ".join("n" if size is None else str(size) for size in sizes)
        raise InvalidRequest(f"'{at}.shape' must be [{wanted}], none 0; got {list(array.shape)}", param=f"{at}.shape")
