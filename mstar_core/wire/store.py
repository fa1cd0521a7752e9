"""The `local` transport: tensors handed from one party to another within a process, by reference.

A party publishes an array and sends its `TensorRef`; whoever holds the reference takes the array, once. What nobody
will take any more is dropped by its publisher. Torch-free: arrays are numpy's.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

from mstar_core.wire.messages import TensorRef

if TYPE_CHECKING:
    from numpy.typing import NDArray


class LocalStore:
    """Arrays published within this process, by key; shared by all its parties. Safe from any thread."""

    def __init__(self) -> None:
        self._keys = itertools.count(1)
        self._arrays: dict[int, NDArray[Any]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._arrays)

    def publish(self, array: NDArray[Any]) -> TensorRef:
        """Keep `array` (the caller no longer writes to it) and name it."""
        key = next(self._keys)
        with self._lock:
            self._arrays[key] = array
        return TensorRef(str(array.dtype), array.shape, "local", key)

    def take(self, ref: TensorRef) -> NDArray[Any]:
        """The array behind a reference; it is no longer kept. Raises `KeyError` when its publisher has dropped it."""
        with self._lock:
            return self._arrays.pop(ref.key)

    def drop(self, ref: TensorRef) -> None:
        """Forget an array that nobody will take; one that was taken already is fine."""
        with self._lock:
            self._arrays.pop(ref.key, None)
