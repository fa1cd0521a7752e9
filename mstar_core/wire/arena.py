"""Memory that one process owns and others of its host map: a memfd without a name, reached by /proc/PID/fd. Torch-free.

The kernel frees it with the last process that maps it, however those end, and nothing lies in /dev/shm. It has its
full length from the start, which costs nothing: the system provides a page when it is first written to, and since the
length is sealed, what a peer maps is always there.

An arena is cut into units of 64 bytes. A slot is one unit of header and the units of its data; the header's first two
words of 32 bits are the slot's state and its sequence number, by which a stale key is told from a live one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNIT = 64
"""Bytes: a cache line, and enough for every dtype's alignment."""

FREE, SENT, TAKEN, READ, HELD = range(5)
"""States of a slot. Its receiver makes SENT to TAKEN and then to READ, or to READ at once; the owner does the rest."""

SUPPORTED = sys.platform == "linux" and hasattr(os, "memfd_create")


class Arena:
    """A mapping of an arena, one's own or a peer's. `words` are its 32-bit words; a store to one is atomic."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        self.length = len(self._memory)
        self.words = memoryview(self._memory).cast("I")

    def array(self, unit: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The data of the slot whose header is at `unit`. The array keeps the mapping; views of it keep the array."""
        return np.ndarray(shape, dtype, buffer=self._memory, offset=(unit + 1) * UNIT)


class OwnArena(Arena):
    """An arena of this process, of `length` bytes. `place` is what peers open it by."""

    def __init__(self, length: int) -> None:
        token = secrets.token_hex(4)
        self._descriptor = os.memfd_create(_name(token), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._descriptor, length)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        super().__init__(self._descriptor)
        self.place = f"{os.getpid()}/{self._descriptor}/{token}"

    def close(self) -> None:
        """No peer can open it any more; what is mapped stays."""
        os.close(self._descriptor)


def open_arena(place: str) -> Arena:
    """Map a peer's arena. Raises `KeyError` when its owner is gone, even if another process has its number now."""
    process, descriptor, token = place.split("/")
    path = f"/proc/{process}/fd/{descriptor}"
    try:
        _require(path, token)
        own = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise KeyError(f"the arena at {place} is gone: {error}") from error
    try:
        _require(f"/proc/self/fd/{own}", token)
        return Arena(own)
    except OSError as error:
        raise KeyError(f"the arena at {place} is gone: {error}") from error
    finally:
        os.close(own)


def exists(place: str) -> bool:
    """Whether the owner of an arena still has it."""
    process, descriptor, token = place.split("/")
    try:
        _require(f"/proc/{process}/fd/{descriptor}", token)
    except OSError:
        return False
    return True


def header(key: int) -> tuple[int, int]:
    """The unit of a slot's header, and the index of its state among the arena's words. A key is sequence and unit."""
    unit = key & 0xFFFFFFFF
    return unit, unit * (UNIT // 4)


def give_back(words: memoryview, key: int, state: int) -> None:
    """For a receiver: say that a slot, which is in `state`, was read. One that is another's by now stays as it is."""
    _, word = header(key)
    if words[word] == state and words[word + 1] == key >> 32:
        words[word] = READ


def _name(token: str) -> str:
    return f"mstar-{token}"


def _require(path: str, token: str) -> None:
    found = os.readlink(path)
    if found != f"/memfd:{_name(token)} (deleted)":
        raise FileNotFoundError(f"{path} is {found}")
