"""What moves tensors between parties: the interface of a transport, and the one that always works. Torch-free.

A party's `Exchange` asks its transports in turn. Plugins bring others (hook `mstar_transports`); one that can move
memory of a device finds the tensor itself in the `Payload`.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mstar_core.wire.messages import Address, Sample, TensorRef

if TYPE_CHECKING:
    from numpy.typing import NDArray

STAND_INS: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(np.uint16),
    "float8_e4m3fn": np.dtype(np.uint8),
    "float8_e4m3fnuz": np.dtype(np.uint8),
    "float8_e5m2": np.dtype(np.uint8),
    "float8_e5m2fnuz": np.dtype(np.uint8),
    "float8_e8m0fnu": np.dtype(np.uint8),
}
"""Dtypes that numpy lacks, by their names in torch, and what an array of their bits has instead."""


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of the array that stands for a tensor of dtype `name`; raises `TypeError` for what is no number."""
    dtype = STAND_INS[name] if name in STAND_INS else np.dtype(name)
    if dtype.kind not in "biufc":
        raise TypeError(f"tensors hold numbers or booleans, not {name!r}")
    return dtype


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    name = str(dtype)
    numpy_dtype(name)
    return name


class Payload(ABC):
    """A tensor as its publisher or its receiver holds it: `dtype` by name, `shape`, and size in bytes."""

    __slots__ = ("dtype", "nbytes", "shape")

    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @abstractmethod
    def write(self, room: NDArray[np.uint8]) -> None:
        """Copy the bytes, in C order, into `room`, which is as large."""

    @abstractmethod
    def array(self) -> NDArray[Any]:
        """The tensor as a numpy array, without a copy where it is in host memory."""


class ArrayPayload(Payload):
    """A numpy array. `dtype` names what its bits mean, where numpy has no such dtype."""

    __slots__ = ("_array",)

    def __init__(self, array: NDArray[Any], dtype: str | None = None, shape: Sequence[int] | None = None) -> None:
        self._array = array
        self.dtype = dtype or _name(array.dtype)
        assert dtype is None or numpy_dtype(dtype) == array.dtype, f"{array.dtype} does not stand for {dtype}"
        self.shape = array.shape if shape is None else tuple(shape)
        self.nbytes = array.nbytes

    def write(self, room: NDArray[np.uint8]) -> None:
        """Copy, without the interpreter's lock."""
        np.copyto(room.view(self._array.dtype).reshape(self._array.shape), self._array)

    def array(self) -> NDArray[Any]:
        """The array, in the shape that was published."""
        return self._array if self._array.shape == self.shape else self._array.reshape(self.shape)


class Transport(ABC):
    """A way to move tensors from the party that has this object to others, and to it from others.

    All methods may be called from any thread. A reference's `transport` is `name`; `place` and `key` are this
    transport's own affair.
    """

    name: str

    smallest = 0
    """Tensors of fewer bytes travel in the message instead."""

    @abstractmethod
    def reaches(self, receiver: Address) -> bool:
        """Whether what is published here can be taken by the party at `receiver`."""

    @abstractmethod
    def publish(self, payload: Payload, receiver: Address | None) -> TensorRef | None:
        """Make a tensor available to `receiver`, once; or to all that this transport reaches, until `drop` (None).

        The publisher may write to the tensor's memory again after the call, unless `receiver` is in its own process.
        None when there is no room: never waits.
        """

    @abstractmethod
    def reachable(self, ref: TensorRef) -> bool:
        """Whether a reference of this transport can be taken here, if its publisher has not dropped it."""

    @abstractmethod
    def take(self, ref: TensorRef) -> Payload:
        """The tensor behind a reference: once, unless it is held. Raises `KeyError` when it is gone."""

    @abstractmethod
    def release(self, ref: TensorRef) -> None:
        """A reference will not be taken; one that was taken, is held or is gone is fine."""

    @abstractmethod
    def drop(self, ref: TensorRef) -> None:
        """Free what this party holds; nobody reads it any more."""

    @abstractmethod
    def forget(self, receiver: Address) -> None:
        """A party is gone: free what was published to it."""

    @abstractmethod
    def samples(self) -> list[Sample]:
        """What is in use, for the metrics."""

    @abstractmethod
    def close(self) -> None:
        """Free everything that was published; what others have taken stays theirs."""


class Inline(Transport):
    """The bytes travel in the message: for small tensors, for other hosts, and when other transports have no room."""

    name = "inline"

    def reaches(self, receiver: Address) -> bool:
        """Everybody."""
        return True

    def publish(self, payload: Payload, receiver: Address | None) -> TensorRef:
        """A reference that is the tensor."""
        return TensorRef(payload.dtype, payload.shape, payload.array().tobytes(), held=receiver is None)

    def reachable(self, ref: TensorRef) -> bool:
        """Always."""
        return True

    def take(self, ref: TensorRef) -> Payload:
        """A read-only array over the message's bytes."""
        data, dtype = ref.data, numpy_dtype(ref.dtype)
        assert data is not None
        if len(data) != math.prod(ref.shape) * dtype.itemsize:
            raise ValueError(f"{len(data)} bytes are no tensor of shape {ref.shape} and dtype {ref.dtype}")
        return ArrayPayload(np.ndarray(ref.shape, dtype, data), ref.dtype)

    def release(self, ref: TensorRef) -> None:
        """Nothing is kept."""

    def drop(self, ref: TensorRef) -> None:
        """Nothing is kept."""

    def forget(self, receiver: Address) -> None:
        """Nothing is kept."""

    def samples(self) -> list[Sample]:
        """Nothing is kept."""
        return []

    def close(self) -> None:
        """Nothing is kept."""
