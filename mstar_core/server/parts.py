"""The parts of a request: JSON to content.

    {"type": "text", "text": ...}
    {"type": "image", "data": ...}                    a picture's file: jpeg, png, webp, gif
    {"type": "video", "data": ..., "frames": n}       a clip's file: mp4, mov, webm, mkv, animated pictures; at most n
                                                      frames, at equal distances (default: all)
    {"type": "audio", "data": ...}                    a sound's file
    {"type": "tensor", "name": ..., "data": ..., "key": ...}    a file, safetensors or npy, and which tensor of it
    {"type": "tensor", "name": ..., "dtype": ..., "data": [[...], ...]}    nested lists; dtype float32 by default

and, as they come in answers, values in C order, little-endian:

    {"type": "tensor", "name": ..., "dtype": ..., "shape": [...], "data": ...}
    {"type": "image", "dtype": "uint8", "shape": [height, width, 3], "data": ...}
    {"type": "video", "dtype": "uint8", "shape": [frames, height, width, 3], "rate": ..., "data": ..., "audio": part}
    {"type": "audio", "dtype": "float32", "shape": [samples], "rate": ..., "data": ...}

`data` is base64. In a form, `"file": NAME` stands for it: the bytes of the form's field NAME. What a file is, its first
bytes say. Values of bfloat16 become float32, exactly; float16 stays.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from mstar_core.errors import InvalidRequest, TooLarge
from mstar_core.media import MediaLimits, MediaTooLarge, UnreadableMedia, decode_audio, decode_image, decode_video
from mstar_core.media.formats import MAX_SAMPLE_RATE, MIN_SAMPLE_RATE
from mstar_core.media.tensors import DTYPES, array_of, read_tensor
from mstar_core.server.body import shown, validate
from mstar_core.server.numbers import array_from_lists
from mstar_core.server.rules import chosen
from mstar_core.server.uploads import Uploads
from mstar_core.spec.content import Audio, Content, Image, Tensor, Text, Video

_MAX_FRAME_RATE = 1000.0
"""A bound on what a client can claim of a video, in frames a second."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    type: str = ""


class _TextPart(_Part):
    text: str


class _FilePart(_Part):
    """`data`, base64, or `file`, a field of the form: one of the two."""

    data: str = ""
    file: str = ""


class _VideoFilePart(_FilePart):
    frames: int = Field(default_factory=int, ge=1)


class _TensorFilePart(_FilePart):
    name: str
    key: str = ""


class _ArrayPart(_FilePart):
    dtype: str
    shape: list[int]


class _TensorPart(_ArrayPart):
    name: str


class _ListPart(_Part):
    name: str
    dtype: str = "float32"
    shape: list[int] = Field(default_factory=list)
    data: list[Any]


class _AudioPart(_ArrayPart):
    dtype: Literal["float32"] = "float32"
    rate: int = Field(ge=MIN_SAMPLE_RATE, le=MAX_SAMPLE_RATE)


class _ImagePart(_ArrayPart):
    dtype: Literal["uint8"] = "uint8"


class _VideoPart(_ImagePart):
    rate: float = Field(gt=0, le=_MAX_FRAME_RATE)
    audio: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartReader:
    """Reads the parts of one request. Work of the CPU: call it in a thread.

    Its methods raise `InvalidRequest` or, for a medium over the `limits`, `TooLarge`, whose `param` is the wrong
    field's path below `at`. Without `sound` the audio tracks of clips are not decoded. `taken` are the sizes, in bytes,
    of the media that were read.
    """

    limits: MediaLimits
    uploads: Uploads
    sound: bool = True
    taken: list[int] = field(default_factory=list)

    def content(self, part: object, at: str) -> Content:
        """The content of a client's part of any type."""
        fields = part_fields(part, at)
        return _READERS[chosen(fields.get("type"), _READERS, f"{at}.type")](self, fields, at)

    def text(self, part: Mapping[str, Any], at: str) -> Text:
        """A text part."""
        text = validate(_TextPart, part, at).text
        if not text.strip():
            raise InvalidRequest(f"'{at}.text' must hold some text", param=f"{at}.text")
        return Text(text)

    def tensor(self, part: Mapping[str, Any], at: str) -> Tensor:
        """A tensor part, in any of its three forms."""
        if isinstance(part.get("data"), list):
            return self._listed(validate(_ListPart, part, at), at)
        if {"dtype", "shape"} & part.keys():
            fields = validate(_TensorPart, part, at)
            return Tensor(fields.name, self._unpacked(fields, at))
        file = validate(_TensorFilePart, part, at)
        data, where = self._payload(file, at)
        with _named(where):
            return Tensor(file.name, read_tensor(data, file.key or None, file.name))

    def audio(self, part: Mapping[str, Any], at: str) -> Audio:
        """An audio part: samples or a file."""
        if {"rate", "shape"} & part.keys():
            fields = validate(_AudioPart, part, at)
            samples = self._unpacked(fields, at)
            _require_shape(samples, (None,), at)
            if not np.isfinite(samples).all():
                raise InvalidRequest(f"'{at}.data' must hold finite samples", param=f"{at}.data")
            return Audio(samples, fields.rate)
        data, where = self.payload(part, at)
        return self.audio_file(data, where)

    def image(self, part: Mapping[str, Any], at: str) -> Image:
        """An image part: pixels or a file."""
        if "shape" in part:
            pixels = self._unpacked(validate(_ImagePart, part, at), at)
            _require_shape(pixels, (None, None, 3), at)
            return Image(pixels)
        data, where = self.payload(part, at)
        return self.image_file(data, where)

    def video(self, part: Mapping[str, Any], at: str) -> Video:
        """A video part: frames or a file."""
        if {"rate", "shape"} & part.keys():
            fields = validate(_VideoPart, part, at)
            frames = self._unpacked(fields, at)
            _require_shape(frames, (None, None, None, 3), at)
            return Video(frames, fields.rate, self._sound_track(fields, at))
        file = validate(_VideoFilePart, part, at)
        data, where = self._payload(file, at)
        return self.video_file(data, where, file.frames or None)

    def image_file(self, data: bytes, at: str) -> Image:
        """The picture in a file's bytes, which stand at the path `at`."""
        with self._counted(at):
            pixels = decode_image(data, limits=self.limits)
            self.taken.append(pixels.nbytes)
        return Image(pixels)

    def audio_file(self, data: bytes, at: str) -> Audio:
        """The sound in a file's bytes, which stand at the path `at`."""
        with self._counted(at):
            samples, rate = decode_audio(data)
            self.taken.append(samples.nbytes)
        return Audio(samples, rate)

    def video_file(self, data: bytes, at: str, most: int | None = None) -> Video:
        """The clip in a file's bytes, which stand at the path `at`; with `most`, so many of its frames."""
        with self._counted(at):
            clip = decode_video(data, limits=self.limits, most=most, sound=self.sound)
            self.taken.append(clip.frames.nbytes)
        return clip

    @contextmanager
    def _counted(self, at: str) -> Iterator[None]:
        """What is read of one more file, within the limits of a request."""
        if len(self.taken) >= self.limits.media:
            problem = f"the request has more than the {self.limits.media} pictures, clips and sounds that are taken"
            raise InvalidRequest(f"{at!r}: {problem}", param=at)
        with _named(at):
            yield
            self.limits.check_together(sum(self.taken))

    def _listed(self, part: _ListPart, at: str) -> Tensor:
        chosen(part.dtype, DTYPES, f"{at}.dtype")
        dtype = "float32" if part.dtype == "bfloat16" else part.dtype
        array = array_from_lists(part.data, dtype, f"{at}.data")
        if "shape" in part.model_fields_set and part.shape != list(array.shape):
            problem = f"'{at}.shape' is {part.shape}, but the lists are {list(array.shape)}"
            raise InvalidRequest(problem, param=f"{at}.shape")
        return Tensor(part.name, array)

    def _sound_track(self, fields: _VideoPart, at: str) -> Audio | None:
        if "audio" not in fields.model_fields_set:
            return None
        sound = self.content(fields.audio, f"{at}.audio")
        if not isinstance(sound, Audio):
            raise InvalidRequest(f"'{at}.audio.type' must be 'audio'", param=f"{at}.audio.type")
        return sound

    def _unpacked(self, part: _ArrayPart, at: str) -> NDArray[Any]:
        chosen(part.dtype, DTYPES, f"{at}.dtype")
        if any(size < 0 for size in part.shape):
            raise InvalidRequest(f"'{at}.shape' must hold sizes of at least 0, got {part.shape}", param=f"{at}.shape")
        data, where = self._payload(part, at)
        with _named(where):
            return array_of(data, part.dtype, tuple(part.shape))

    def payload(self, part: Mapping[str, Any], at: str) -> tuple[bytes, str]:
        """The bytes of a part that is a file, and the path of the field that has or names them."""
        return self._payload(validate(_FilePart, part, at), at)

    def _payload(self, part: _FilePart, at: str) -> tuple[bytes, str]:
        given = sorted({"data", "file"} & part.model_fields_set)
        if len(given) != 1:
            found = "both" if given else "neither"
            raise InvalidRequest(f"{at!r} must have 'data' or 'file', got {found}", param=f"{at}.data")
        path = f"{at}.{given[0]}"
        data = self.uploads.take(part.file, path) if given[0] == "file" else base64_bytes(part.data, path)
        return data, path


_READERS: Mapping[str, Callable[[PartReader, Mapping[str, Any], str], Content]] = {
    "text": PartReader.text,
    "audio": PartReader.audio,
    "image": PartReader.image,
    "video": PartReader.video,
    "tensor": PartReader.tensor,
}


def part_fields(part: object, at: str) -> Mapping[str, Any]:
    """A client's part as an object; raises `InvalidRequest`."""
    if isinstance(part, Mapping):
        return part
    raise InvalidRequest(f"{at!r} must be an object with a 'type', got {shown(part)}", param=at)


def base64_bytes(data: str, at: str) -> bytes:
    """What the base64 text at the path `at` stands for; raises `InvalidRequest`."""
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{at!r} is not valid base64: {error}", param=at) from None


@contextmanager
def _named(at: str) -> Iterator[None]:
    """What `media` finds wrong with a file, as an error of the field that brought it."""
    try:
        yield
    except MediaTooLarge as error:
        raise TooLarge(f"{at!r}: {error}", param=at) from None
    except UnreadableMedia as error:
        raise InvalidRequest(f"{at!r}: {error}", param=at) from None


def _require_shape(array: NDArray[Any], sizes: tuple[int | None, ...], at: str) -> None:
    fits = array.ndim == len(sizes) and all(size in (None, array.shape[axis]) for axis, size in enumerate(sizes))
    if not fits or not array.size:
        wanted = ", ".join("n" if size is None else str(size) for size in sizes)
        raise InvalidRequest(f"'{at}.shape' must be [{wanted}], none 0; got {list(array.shape)}", param=f"{at}.shape")
