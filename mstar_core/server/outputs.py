"""The outputs of an answer: content to JSON, tensors to safetensors.

Parts look as in a request (see `parts`); audio that was asked for in a format is
`{"type": "audio", "format": ..., "rate": ..., "data": ...}`, `rate` being the model's, and a picture
`{"type": "image", "format": ..., "data": ...}`; a tensor that is made step by step also has its `step`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mstar_core.errors import InvalidRequest
from mstar_core.media import UnencodableImage, encode_audio, encode_image
from mstar_core.media.tensors import by_name, save_tensors
from mstar_core.spec.content import Audio, Content, Image, Tensor, Text, Video


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """What encoded outputs are encoded in, by the formats' names; "" for raw samples, and for raw pixels."""

    audio: str = ""
    image: str = ""


RAW = Formats()
"""Nothing is encoded."""


def output_part(content: Content, image_format: str = "") -> dict[str, Any]:
    """The JSON of one piece of content, audio raw; with an `image_format` work of the CPU: call it in a thread."""
    match content:
        case Text(text):
            return {"type": "text", "text": text}
        case Audio(samples, rate):
            return {"type": "audio", "rate": rate, **_packed(samples)}
        case Image(pixels) if image_format:
            data = base64.b64encode(_image_file(pixels, image_format)).decode()
            return {"type": "image", "format": image_format, "data": data}
        case Image(pixels):
            return {"type": "image", **_packed(pixels)}
        case Video(frames, rate, audio):
            sound = {"audio": output_part(audio)} if audio else {}
            return {"type": "video", "rate": rate, **_packed(frames), **sound}
        case Tensor(name, array, step):
            number = {} if step is None else {"step": step}
            return {"type": "tensor", "name": name, **number, **_packed(array)}


def encoded_part(body: bytes, format: str, rate: int) -> dict[str, Any]:
    """The JSON of encoded audio, or of a piece of it; `rate` in Hz."""
    return {"type": "audio", "format": format, "rate": rate, "data": base64.b64encode(body).decode()}


def output_parts(contents: Sequence[Content], formats: Formats) -> list[dict[str, Any]]:
    """The JSON of a whole answer. Work of the CPU: call it in a thread."""
    parts = []
    for content in joined(contents):
        if isinstance(content, Audio) and formats.audio:
            body = encode_audio(content.samples, formats.audio, content.rate)
            parts.append(encoded_part(body, formats.audio, content.rate))
        else:
            parts.append(output_part(content, formats.image))
    return parts


def safetensors_body(contents: Sequence[Content], formats: Formats, told: Mapping[str, Any]) -> bytes:
    """A whole answer as safetensors: the tensors as `by_name` puts them together, `told` and other outputs as metadata.

    Metadata are strings; what is none is JSON. Work of the CPU: call it in a thread.
    """
    others = [content for content in contents if not isinstance(content, Tensor)]
    fields = {**told, "outputs": output_parts(others, formats)} if others else told
    texts = {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode() for name, value in fields.items()
    }
    return save_tensors(by_name(contents), texts)


def joined(contents: Iterable[Content]) -> list[Content]:
    """Pieces of text, and of audio, put together; a picture, clip or tensor between them keeps them apart.

    Text and audio that a model makes at the same time come mixed, and are two outputs.
    """
    runs: list[list[Content]] = []
    open_runs: dict[type, list[Content]] = {}
    for content in contents:
        if not isinstance(content, (Text, Audio)):
            open_runs.clear()
            runs.append([content])
        elif run := open_runs.get(type(content)):
            run.append(content)
        else:
            runs.append(open_runs.setdefault(type(content), [content]))
    return [_whole(run) for run in runs]


def _whole(run: list[Content]) -> Content:
    first = run[0]
    if isinstance(first, Text):
        return Text("".join(piece.text for piece in run if isinstance(piece, Text)))
    if isinstance(first, Audio):
        pieces = [piece.samples for piece in run if isinstance(piece, Audio)]
        return Audio(np.concatenate(pieces), first.rate)
    return first


def _image_file(pixels: NDArray[np.uint8], format: str) -> bytes:
    try:
        return encode_image(pixels, format)
    except UnencodableImage as error:
        raise InvalidRequest(f"'image_format': {error}", param="image_format") from None


def _packed(array: NDArray[Any]) -> dict[str, Any]:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    data = base64.b64encode(little.tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}
