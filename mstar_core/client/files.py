"""Inputs and results as files: the suffix of a path says what is read, or what is written and how."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mstar_core.errors import ConfigurationError, nearest
from mstar_core.media import (
    AUDIO_FORMATS,
    IMAGE_FORMATS,
    MediaTooLarge,
    UnencodableImage,
    UnreadableMedia,
    decode_audio,
    decode_image,
    decode_video,
    encode_audio,
    encode_image,
)
from mstar_core.media.limits import DEFAULT_LIMITS, MediaLimits
from mstar_core.media.tensors import read_tensor as tensor_in
from mstar_core.media.tensors import save_tensors
from mstar_core.spec.content import Audio, Content, Image, Tensor, Text

AUDIO_SUFFIXES: Mapping[str, str] = {each.suffix: name for name, each in AUDIO_FORMATS.items()} | {".ogg": "opus"}
"""The audio format of each file suffix."""

IMAGE_SUFFIXES: Mapping[str, str] = {suffix: name for name, each in IMAGE_FORMATS.items() for suffix in each.suffixes}
"""The picture format of each file suffix."""

MODALITY_OF_SUFFIX: Mapping[str, str] = {
    **dict.fromkeys(AUDIO_SUFFIXES, "audio"),
    **dict.fromkeys(IMAGE_SUFFIXES, "image"),
    ".txt": "text",
    ".safetensors": "tensor",
}
"""What a file of each suffix is written with."""

INPUT_SUFFIXES: Mapping[str, str] = {
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".webp"), "image"),
    **dict.fromkeys((".mp4", ".m4v", ".mov", ".webm", ".mkv", ".gif"), "video"),
    **dict.fromkeys((".wav", ".flac", ".mp3", ".opus", ".ogg", ".aac", ".m4a"), "audio"),
    ".txt": "text",
}
"""What a file of each suffix is read as; a GIF that stands still is an image."""

TENSOR_SUFFIXES = (".safetensors", ".npy")
"""Suffixes of files that tensors are read from."""


def read_media(path: str | Path, *, frames: int | None = None, limits: MediaLimits = DEFAULT_LIMITS) -> Content:
    """A file as content, `Image`, `Video`, `Audio` or `Text` by its suffix, for `Engine.generate` and the command line.

    With `frames`, at most so many frames of a clip, at equal distances. Raises `ConfigurationError` with the path for a
    file that is not there, has another suffix, or cannot be decoded within the limits.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in INPUT_SUFFIXES:
        raise _unknown_suffix(path, "read", INPUT_SUFFIXES)
    data = _bytes(path)
    try:
        match INPUT_SUFFIXES[suffix]:
            case "image":
                return Image(decode_image(data, limits=limits))
            case "audio":
                return Audio(*decode_audio(data, max_seconds=limits.seconds))
            case "text":
                return Text(data.decode())
        clip = decode_video(data, limits=limits, most=frames)
    except (UnreadableMedia, MediaTooLarge, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    return Image(clip.frames[0]) if suffix == ".gif" and len(clip.frames) == 1 else clip


def read_tensor(name: str, path: str | Path, key: str | None = None) -> Tensor:
    """A tensor from a safetensors or npy file, to be called `name`.

    Of several in a file the one called `key`, else `name`. Raises `ConfigurationError` with the path.
    """
    path = Path(path)
    if path.suffix.lower() not in TENSOR_SUFFIXES:
        raise _unknown_suffix(path, "read", TENSOR_SUFFIXES)
    try:
        return Tensor(name, tensor_in(_bytes(path), key, name))
    except UnreadableMedia as error:
        raise ConfigurationError(f"{path}: {error}") from error


def modality_of(path: Path) -> str:
    """What a file of this name is to hold; raises `ConfigurationError` for a suffix that is not known."""
    suffix = path.suffix.lower()
    if suffix not in MODALITY_OF_SUFFIX:
        raise _unknown_suffix(path, "write", MODALITY_OF_SUFFIX)
    return MODALITY_OF_SUFFIX[suffix]


def write_audio(path: Path, audio: Audio) -> None:
    """Encode audio in the format of the path's suffix and write it. Raises `ConfigurationError`, `OSError`."""
    if modality_of(path) != "audio":
        raise ConfigurationError(f"{path}: audio needs a suffix of {', '.join(AUDIO_SUFFIXES)}")
    path.write_bytes(encode_audio(audio.samples, AUDIO_SUFFIXES[path.suffix.lower()], audio.rate))


def write_images(path: Path, images: Sequence[Image]) -> list[Path]:
    """Write pictures in the format of the path's suffix: one to `path`, several to `NAME-1.png`, `NAME-2.png`, ...

    Returns the paths. Raises `ConfigurationError`, `OSError`.
    """
    if modality_of(path) != "image":
        raise ConfigurationError(f"{path}: pictures need a suffix of {', '.join(IMAGE_SUFFIXES)}")
    numbered = [path.with_stem(f"{path.stem}-{number}") for number in range(1, len(images) + 1)]
    paths = numbered if len(images) > 1 else [path]
    for each, image in zip(paths, images, strict=True):
        try:
            each.write_bytes(encode_image(image.pixels, IMAGE_SUFFIXES[path.suffix.lower()]))
        except UnencodableImage as error:
            raise ConfigurationError(f"{each}: {error}") from error
    return paths


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write arrays by name as safetensors."""
    path.write_bytes(save_tensors(tensors))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error


def _unknown_suffix(path: Path, what: str, known: Collection[str]) -> ConfigurationError:
    suffix = path.suffix.lower()
    hint = nearest(suffix, known)
    return ConfigurationError(
        f"{path}: cannot tell what to {what} from the suffix {suffix!r}{hint}; known are {', '.join(known)}"
    )
