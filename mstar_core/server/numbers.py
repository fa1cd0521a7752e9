"""Nested JSON lists of numbers to arrays, every wrong element named by its path."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstar_core.errors import InvalidRequest
from mstar_core.server.body import shown

_DEEPEST = 8
"""Axes of a nested list; a video has four."""


def array_from_lists(value: list[Any], dtype: str, at: str) -> NDArray[Any]:
    """`value` as an array of a boolean, integer or floating dtype.

    Raises `InvalidRequest` whose `param` is the path below `at` of what is ragged, empty, no number, not finite, or not
    of the dtype.
    """
    shape = _shape(value, at)
    numbers: list[Any] = []
    _gather(value, shape, np.dtype(dtype), at, numbers)
    array = np.array(numbers, np.float64 if np.dtype(dtype).kind == "f" else object)
    with np.errstate(over="ignore"):
        converted = array.astype(dtype).reshape(shape)
    require_finite(converted, at)
    return converted


def require_finite(array: NDArray[Any], at: str) -> None:
    """Raise `InvalidRequest` that names the first element that is NaN or an infinity."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    index = np.unravel_index(int(np.argmin(np.isfinite(array))), array.shape)
    path = ".".join((at, *(str(step) for step in index)))
    raise InvalidRequest(f"{path!r} must be finite in {array.dtype.name}, got {array[index]}", param=path)


def _shape(value: Any, at: str) -> tuple[int, ...]:
    """The shape, by the first element of every list."""
    sizes: list[int] = []
    while isinstance(value, list):
        if not value:
            raise InvalidRequest(f"{at!r} must hold numbers, got an empty list", param=at)
        if len(sizes) == _DEEPEST:
            raise InvalidRequest(f"{at!r} is nested deeper than {_DEEPEST} lists", param=at)
        sizes.append(len(value))
        value, at = value[0], f"{at}.0"
    return tuple(sizes)


def _gather(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], at: str, numbers: list[Any]) -> None:
    """Append the numbers of a list of that shape."""
    if not isinstance(value, list) or len(value) != shape[0]:
        found = f"{len(value)} elements" if isinstance(value, list) else shown(value)
        raise InvalidRequest(f"{at!r} must be a list of {shape[0]} like those before it, got {found}", param=at)
    if len(shape) > 1:
        for index, inner in enumerate(value):
            _gather(inner, shape[1:], dtype, f"{at}.{index}", numbers)
        return
    for index, number in enumerate(value):
        if not _fits(number, dtype):
            path, wanted = f"{at}.{index}", _wanted(dtype)
            raise InvalidRequest(f"{path!r} must be {wanted}, got {shown(number)}", param=path)
    numbers += value


def _fits(number: Any, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b" or isinstance(number, bool):
        return dtype.kind == "b" and isinstance(number, bool)
    if dtype.kind == "f":
        return isinstance(number, float) or (isinstance(number, int) and abs(number) < _FLOAT_LIMIT)
    if not isinstance(number, int):
        return False
    limits = np.iinfo(dtype)
    return int(limits.min) <= number <= int(limits.max)


_FLOAT_LIMIT = int(np.finfo(np.float64).max)


def _wanted(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "b":
        return "true or false"
    return "a number" if dtype.kind == "f" else f"an integer that fits {dtype.name}"
