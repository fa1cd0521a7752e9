"""Loading published weights: which tensors make up a parameter, read one by one, straight to their place.

A module is built on `meta`, so that memory holds each weight once, plus the tensor being read. The largest modules are
filled first, while memory is still empty.
"""

from __future__ import annotations

import itertools
import json
import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from mstar_core.engines.base import TensorParallel
from mstar_core.errors import CheckpointError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"

_MAPPED = 1 << 20
"""Bytes from which a tensor in host memory gets a mapping of its own."""

_FEW = 4
"""Pieces of one parameter that an error lists in full."""

_RUN = 16 << 20
"""Bytes that are read from a file before it is closed and opened again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A published tensor that makes up a parameter, or part of one: pieces lie one below the other along axis 0.

    Pieces with fewer axes fill a parameter as if its first axes were one: experts that are published one by one, say,
    `[width, hidden]` each, fill `[experts, width, hidden]`. With several ranks each takes its share of the piece along
    axis `split`; None is taken whole.
    """

    name: str
    split: int | None = None


Place: TypeAlias = "tuple[torch.Tensor, str, tuple[slice, ...]]"
"""Where a tensor is copied to, its name, and the part of it that is."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a checkpoint directory by name: shape, and the file that holds it."""

    directory: Path
    shapes: Mapping[str, tuple[int, ...]]
    files: Mapping[str, Path]

    @classmethod
    def open(cls, directory: Path) -> Weights:
        """Read the headers of `model.safetensors`, or of the shards that its index names."""
        shapes: dict[str, tuple[int, ...]] = {}
        files: dict[str, Path] = {}
        for path in _files(directory):
            try:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 (not a mapping)
                        shapes[name] = tuple(file.get_slice(name).get_shape())
                        files[name] = path
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path}: cannot be read as safetensors: {error}") from error
        return cls(directory, shapes, files)

    def read_all(self, places: Sequence[Place]) -> None:
        """Copy parts of tensors to their places.

        A file is open, and mapped, only for a run of such parts: long enough for many small tensors to share the cost
        of reading its header, too short for what is mapped to add much to what is resident.
        """
        for path, run in _runs(places, self.files):
            with safe_open(path, framework="pt") as file:
                for place, name, part in run:
                    place.copy_(file.get_slice(name)[part])


def load_weights(
    module: nn.Module,
    weights: Weights,
    names: Mapping[str, Sequence[Piece]],
    *,
    device: torch.device,
    dtype: torch.dtype,
    parallel: TensorParallel | None = None,
    ignore: Sequence[str] = (),
    filled: Callable[[nn.Module], None] | None = None,
) -> None:
    """Fill a module that was built on `meta`.

    `names` says for every parameter which tensors it is made of; tensors whose names begin with one of `ignore` may
    be left over. `filled` is called with each submodule that has parameters, once all of its own are there: to pack
    them before the next are read, say. Raises one `CheckpointError` that lists every missing, misshapen and unexpected
    tensor.
    """
    parallel = parallel or TensorParallel()
    parameters = dict(module.named_parameters())
    assert parameters.keys() == names.keys(), f"names do not fit: {sorted(parameters.keys() ^ names.keys())}"
    problems = [
        *_unfit(parameters, weights, names, parallel),
        *_unexpected(weights, names, ignore),
    ]
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise CheckpointError(f"{weights.directory}: {len(problems)} tensors do not fit the model\n{listed}")
    for owner, attributes in _by_size(parameters):
        submodule = module.get_submodule(owner)
        for attribute in attributes:
            name = f"{owner}.{attribute}" if owner else attribute
            value = _memory(parameters[name].shape, device, dtype)
            _fill(value, weights, names[name], parallel)
            setattr(submodule, attribute, nn.Parameter(value, requires_grad=False))
            del value  # what `filled` replaces is freed at once
        if filled is not None:
            filled(submodule)


def _by_size(parameters: Mapping[str, nn.Parameter]) -> list[tuple[str, list[str]]]:
    """Submodules with the names of their own parameters, the largest first."""
    attributes: dict[str, list[str]] = {}
    elements: dict[str, int] = {}
    for name, parameter in parameters.items():
        owner, _, attribute = name.rpartition(".")
        attributes.setdefault(owner, []).append(attribute)
        elements[owner] = elements.get(owner, 0) + parameter.numel()
    return sorted(attributes.items(), key=lambda item: -elements[item[0]])


def _files(directory: Path) -> list[Path]:
    index = directory / _INDEX
    if index.is_file():
        try:
            return [directory / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
        except (ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{index}: is no index of shards: {error}") from error
    if (directory / _SINGLE).is_file():
        return [directory / _SINGLE]
    there = ", ".join(sorted(path.name for path in directory.iterdir())) if directory.is_dir() else "no such directory"
    raise CheckpointError(f"{directory}: neither {_SINGLE} nor {_INDEX} is there (found: {there})")


def _unfit(
    parameters: Mapping[str, nn.Parameter],
    weights: Weights,
    names: Mapping[str, Sequence[Piece]],
    parallel: TensorParallel,
) -> list[str]:
    problems = []
    for name, pieces in names.items():
        missing = [piece.name for piece in pieces if piece.name not in weights.shapes]
        problems += [f"{each} is missing" for each in missing]
        if missing:
            continue
        wanted = tuple(parameters[name].shape)
        shapes = [_share(weights.shapes[piece.name], piece, parallel) for piece in pieces]
        stacked = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        if stacked != _flat(wanted, len(stacked)) or any(shape[1:] != shapes[0][1:] for shape in shapes):
            problems.append(f"{_listed(pieces, weights)}: the model needs {list(wanted)}")
    return problems


def _flat(shape: tuple[int, ...], axes: int) -> tuple[int, ...]:
    """The shape with so many axes: its first ones made one."""
    joined = len(shape) - axes + 1
    return (math.prod(shape[:joined]), *shape[joined:]) if joined > 1 else shape


def _listed(pieces: Sequence[Piece], weights: Weights) -> str:
    """Pieces with their shapes: all of a few, the first and last of many."""
    named = [f"{piece.name} {list(weights.shapes[piece.name])}" for piece in pieces]
    return ", ".join(named if len(named) <= _FEW else [*named[: _FEW - 1], "...", named[-1]])


def _unexpected(weights: Weights, names: Mapping[str, Sequence[Piece]], ignore: Sequence[str]) -> list[str]:
    used = {piece.name for pieces in names.values() for piece in pieces}
    extra = [name for name in weights.shapes if name not in used and not name.startswith(tuple(ignore))]
    return [f"{name} is not part of the model" for name in extra]


def _share(shape: tuple[int, ...], piece: Piece, parallel: TensorParallel) -> tuple[int, ...]:
    if piece.split is None:
        return shape
    return tuple(size // parallel.size if axis == piece.split else size for axis, size in enumerate(shape))


def _memory(shape: torch.Size, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Room for a parameter.

    A large one in host memory lies in a mapping of its own, which goes back to the system as soon as the parameter is
    replaced by a packed one: the heap would keep it, as a hole too small for the next aligned request of that size.
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < _MAPPED:
        return torch.empty(shape, device=device, dtype=dtype)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(mapping, dtype=dtype).view(shape)


def _fill(value: torch.Tensor, weights: Weights, pieces: Sequence[Piece], parallel: TensorParallel) -> None:
    """Copy the pieces into place, one after the other."""
    shapes = [_share(weights.shapes[piece.name], piece, parallel) for piece in pieces]
    rows = value.view(_flat(tuple(value.shape), len(shapes[0])))
    ends = list(itertools.accumulate(shape[0] for shape in shapes))
    weights.read_all(
        [
            (rows[end - shape[0] : end], piece.name, _range(shape, piece, parallel))
            for piece, shape, end in zip(pieces, shapes, ends, strict=True)
        ]
    )


def _runs(places: Sequence[Place], files: Mapping[str, Path]) -> Iterator[tuple[Path, list[Place]]]:
    """Parts in their order, cut where the file changes or `_RUN` bytes have been read."""
    run: list[Place] = []
    read = 0
    for place in places:
        if run and (files[place[1]] != files[run[0][1]] or read >= _RUN):
            yield files[run[0][1]], run
            run, read = [], 0
        run.append(place)
        read += place[0].nbytes
    if run:
        yield files[run[0][1]], run


def _range(shape: tuple[int, ...], piece: Piece, parallel: TensorParallel) -> tuple[slice, ...]:
    return tuple(
        slice(parallel.rank * size, (parallel.rank + 1) * size) if axis == piece.split else slice(None)
        for axis, size in enumerate(shape)
    )
