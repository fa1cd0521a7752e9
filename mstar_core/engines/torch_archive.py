"""Published weights in a file of `torch.save` (`.pt`), read tensor by tensor, as safetensors are.

The file's pickle is read with `weights_only`, so no code in it runs, and under a fake tensor mode, so that the tensors
are only described; each tensor's bytes are then read from their place in the file when they are needed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mstar_core.engines.weights import Place, Weights
from mstar_core.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where the bytes of a contiguous tensor begin in its file."""

    dtype: torch.dtype
    offset: int


@dataclass(frozen=True, slots=True)
class ArchiveWeights(Weights):
    """The tensors of one dictionary inside a `.pt` file."""

    stored: Mapping[str, StoredTensor]

    @classmethod
    def open_section(cls, path: Path, section: str, rename: Callable[[str], str] | None = None) -> ArchiveWeights:
        """The dictionary `section` of the file's top-level dictionary, its names passed through `rename`.

        Raises `CheckpointError` for a file that cannot be read, lacks the section, or holds something else in it.
        """
        content = read_archive(path)
        tensors = content.get(section)
        if not isinstance(tensors, Mapping):
            found = ", ".join(map(str, content)) or "nothing"
            raise CheckpointError(f"{path}: there is no dictionary {section!r} in it (found: {found})")
        shapes: dict[str, tuple[int, ...]] = {}
        stored: dict[str, StoredTensor] = {}
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
                raise CheckpointError(f"{path}: {name!r} in {section!r} is no contiguous tensor")
            ours = rename(name) if rename else name
            if ours in shapes:
                raise CheckpointError(f"{path}: {section!r} holds two tensors for {ours!r}")
            shapes[ours] = tuple(tensor.shape)
            stored[ours] = StoredTensor(tensor.dtype, _offset(tensor))
        return cls(path.parent, shapes, dict.fromkeys(shapes, path), stored)

    def read_all(self, places: Sequence[Place]) -> None:
        """Copy parts of tensors to their places."""
        for place, name, part in places:
            self.read_into(place, name, part)

    def read_into(self, place: torch.Tensor, name: str, part: tuple[slice, ...]) -> None:
        """Read one tensor and copy a part of it to `place`."""
        whole = torch.empty(self.shapes[name], dtype=self.stored[name].dtype)
        buffer = whole.view(-1).view(torch.uint8).numpy()
        with self.files[name].open("rb", buffering=0) as file:
            file.seek(self.stored[name].offset)
            complete = _read_all(file, memoryview(buffer.data))
        if not complete:
            raise CheckpointError(f"{self.files[name]}: it ends inside {name!r}; fetch it again")
        place.copy_(whole[part])


def read_archive(path: Path) -> Mapping[str, Any]:
    """The top-level dictionary of a `.pt` file, its tensors without contents. Raises `CheckpointError`."""
    try:
        with FakeTensorMode():
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path}: cannot be read as a file of tensors: {problem}") from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, not a dictionary")
    return content


def _offset(tensor: torch.Tensor) -> int:
    """The place of a fake tensor's first byte: torch notes where each storage begins (its "serialization" notes)."""
    storage: Any = tensor.untyped_storage()
    return int(storage._checkpoint_offset) + int(tensor.storage_offset()) * tensor.element_size()


def _read_all(file: FileIO, buffer: memoryview) -> bool:
    """Fill a buffer from a file, which gives at most 2 GiB at a time; whether there was enough."""
    while buffer:
        read = file.readinto(buffer)
        if not read:
            return False
        buffer = buffer[read:]
    return True
