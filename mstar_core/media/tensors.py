"""Tensors as files: safetensors and npy to arrays, arrays to safetensors; what was made in steps, by name."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from mstar_core.errors import nearest
from mstar_core.media.errors import UnreadableMedia
from mstar_core.media.sniff import first_bytes
from mstar_core.spec.content import Content, Tensor

_NPY = b"\x93NUMPY"

_SAFETENSORS: Mapping[str, str] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}
"""Our name of each dtype that safetensors names."""

DTYPES = tuple(_SAFETENSORS.values())
"""The dtypes of tensors from clients. numpy has no bfloat16: such values become float32, exactly."""

LISTED_DTYPES = tuple(name for name in DTYPES if name != "bfloat16")
"""The dtypes that arrays here have."""


class UnreadableTensors(UnreadableMedia):
    """The bytes are no file of tensors that can be read, or lack the tensor. A client's mistake: 400."""


def array_of(data: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The little-endian values of an array in C order; `dtype` is one of `DTYPES`; raises `UnreadableTensors`.

    The array owns its memory. bfloat16 values come as float32.
    """
    stored = np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")
    wanted = math.prod(shape) * stored.itemsize
    if len(data) != wanted:
        raise UnreadableTensors(f"holds {len(data)} bytes; {dtype} {list(shape)} takes {wanted}")
    values = np.frombuffer(data, stored).reshape(shape)
    if dtype == "bfloat16":  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(stored.newbyteorder("="))


def read_tensor(data: bytes, key: str | None, name: str) -> NDArray[Any]:
    """One tensor of a safetensors or npy file. Which one: `key`, else the one of that `name`, else the only one.

    Raises `UnreadableTensors`. Nothing is ever unpickled.
    """
    if data.startswith(_NPY):
        if key is not None:
            raise UnreadableTensors(f"an npy file holds one tensor, which has no name, so none is {key!r}")
        return _read_npy(data)
    stored = _stored(data)
    chosen = key if key is not None else name if name in stored or len(stored) != 1 else next(iter(stored))
    if chosen not in stored:
        names = ", ".join(sorted(stored))
        raise UnreadableTensors(f"no tensor {chosen!r}{nearest(chosen, stored)}; there are: {names}")
    found = stored[chosen]
    if found["dtype"] not in _SAFETENSORS:
        raise UnreadableTensors(f"tensor {chosen!r} is {found['dtype']}; taken are {', '.join(_SAFETENSORS)}")
    return array_of(bytes(found["data"]), _SAFETENSORS[found["dtype"]], tuple(found["shape"]))


def save_tensors(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Arrays by name as safetensors."""
    whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return safetensors.numpy.save(whole, dict(metadata) if metadata else None)


def by_name(contents: Iterable[Content]) -> dict[str, NDArray[Any]]:
    """The arrays of all tensors by name.

    Those made step by step, or several times, are put together along a new first axis, [steps, ...], also if there is
    but one step. Where their shapes differ each has its number behind its name: `latents.0`, `latents.1`, ...
    """
    made: dict[str, list[Tensor]] = {}
    for content in contents:
        if isinstance(content, Tensor):
            made.setdefault(content.name, []).append(content)
    arrays: dict[str, NDArray[Any]] = {}
    for name, tensors in made.items():
        if len(tensors) == 1 and tensors[0].step is None:
            arrays[name] = tensors[0].array
        elif len({(each.array.shape, each.array.dtype) for each in tensors}) == 1:
            arrays[name] = np.stack([each.array for each in tensors])
        else:
            arrays |= {f"{name}.{number}": each.array for number, each in enumerate(tensors)}
    return arrays


def _stored(data: bytes) -> dict[str, dict[str, Any]]:
    try:
        return dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        problem = f"the bytes are not tensors that can be read ({first_bytes(data)}): {error}"
        raise UnreadableTensors(f"{problem}; send safetensors or npy") from error


def _read_npy(data: bytes) -> NDArray[Any]:
    """Parsed here so that the size is known to fit before anything is allocated, and objects are never loaded."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, EOFError) as error:
        raise UnreadableTensors(f"the npy header cannot be read: {error}") from error
    if dtype.name not in DTYPES:
        raise UnreadableTensors(f"the npy file holds {dtype.name}; taken are {', '.join(DTYPES)}")
    body = memoryview(data)[file.tell() :]
    wanted = math.prod(shape) * dtype.itemsize
    if len(body) != wanted:
        raise UnreadableTensors(f"the npy file holds {len(body)} bytes; {dtype.name} {list(shape)} takes {wanted}")
    values = np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C")
    return np.ascontiguousarray(values, dtype.newbyteorder("=")).copy()
