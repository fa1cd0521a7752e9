"""Results as files: the suffix of a path says what is written and how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar_core.errors import ConfigurationError, nearest
from mstar_core.media import AUDIO_FORMATS, encode_audio

if TYPE_CHECKING:
    from mstar_core.spec.content import Audio

AUDIO_SUFFIXES: Mapping[str, str] = {each.suffix: name for name, each in AUDIO_FORMATS.items()} | {".ogg": "opus"}
"""The audio format of each file suffix."""

MODALITY_OF_SUFFIX: Mapping[str, str] = dict.fromkeys(AUDIO_SUFFIXES, "audio") | {
    ".txt": "text",
    ".safetensors": "tensor",
}
"""What a file of each suffix holds."""


def modality_of(path: Path) -> str:
    """What a file of this name is to hold; raises `ConfigurationError` for a suffix that is not known."""
    suffix = path.suffix.lower()
    if suffix not in MODALITY_OF_SUFFIX:
        known = ", ".join(MODALITY_OF_SUFFIX)
        raise ConfigurationError(
            f"{path}: cannot tell what to write from the suffix {suffix!r}{nearest(suffix, MODALITY_OF_SUFFIX)}; "
            f"known are {known}"
        )
    return MODALITY_OF_SUFFIX[suffix]


def write_audio(path: Path, audio: Audio) -> None:
    """Encode audio in the format of the path's suffix and write it. Raises `ConfigurationError`, `OSError`."""
    if modality_of(path) != "audio":
        raise ConfigurationError(f"{path}: audio needs a suffix of {', '.join(AUDIO_SUFFIXES)}")
    path.write_bytes(encode_audio(audio.samples, AUDIO_SUFFIXES[path.suffix.lower()], audio.rate))


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write arrays by name as safetensors."""
    import numpy as np
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path)
