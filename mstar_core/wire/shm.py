"""The `shm` transport: tensors in memory that the processes of a host share. Torch-free.

Each party has an arena of its own (`wire/arena.py`). Publishing copies a tensor into a slot of it; the receiver maps
the arena once, and then takes tensors without a copy: its array is the slot. When the array and its views are gone, a
word in the slot's header says so, without a message, and the owner frees the slot when it next needs room.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

from mstar_core.wire.arena import HELD, SENT, SUPPORTED, TAKEN, Arena, OwnArena, exists, give_back, header, open_arena
from mstar_core.wire.messages import Address, Sample, TensorRef
from mstar_core.wire.slots import Slots
from mstar_core.wire.store import INPROC
from mstar_core.wire.transport import ArrayPayload, Payload, Transport, numpy_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

SHARED_BYTES = 256 * 2**20
"""The default length of a party's arena."""


class _Loan(weakref.ref["NDArray[Any]"]):
    """Notices when an array that is a slot has died; `weakref.finalize` does the same in five times the time."""

    __slots__ = ("key", "words")

    words: memoryview
    key: int


_loans: dict[int, _Loan] = {}
"""By their own ids, since a reference must live longer than what it refers to."""


def _returned(loan: weakref.ref[NDArray[Any]]) -> None:
    """Runs in whatever thread drops the array, so it takes no locks."""
    assert isinstance(loan, _Loan)
    del _loans[id(loan)]
    give_back(loan.words, loan.key, TAKEN)


class SharedMemory(Transport):
    """One party's arena, of `length` bytes, and its mappings of others' arenas.

    A reference's `place` is the host, the owner's process, a descriptor of it, and a token.
    """

    name = "shm"
    smallest = 2**14 + 1
    """Up to four pages, the copies of a message cost no more than a slot (`benchmarks/messages.py`)."""

    def __init__(self, host: str, length: int) -> None:
        self._host = host
        self._arena = _own_arena(length)
        self._slots = Slots(self._arena) if self._arena else None
        self._place = f"{host}/{self._arena.place}" if self._arena else ""
        self._arenas: dict[str, Arena] = {self._place: self._arena} if self._arena else {}
        self._lock = threading.Lock()

    def reaches(self, receiver: Address) -> bool:
        """Processes of this host."""
        return self._slots is not None and receiver.host == self._host and not receiver.near.startswith(INPROC)

    def publish(self, payload: Payload, receiver: Address | None) -> TensorRef | None:
        """Copy a tensor into a slot."""
        key = self._slots.publish(payload, receiver) if self._slots else None
        if key is None:
            return None
        return TensorRef(payload.dtype, payload.shape, None, self.name, self._place, key, receiver is None)

    def reachable(self, ref: TensorRef) -> bool:
        """Whether its arena is on this host."""
        return SUPPORTED and ref.place.startswith(f"{self._host}/")

    def take(self, ref: TensorRef) -> Payload:
        """The slot itself, given back when the array dies."""
        arena = self._arena_at(ref.place)
        (unit, state), sequence = header(ref.key), ref.key >> 32
        found = arena.words[state]
        if found not in (SENT, HELD) or arena.words[state + 1] != sequence:
            raise KeyError(f"tensor {ref.key} at {ref.place} is gone")
        array = arena.array(unit, ref.shape, numpy_dtype(ref.dtype))
        if found == SENT:
            arena.words[state] = TAKEN
            loan = _Loan(array, _returned)
            loan.words, loan.key = arena.words, ref.key
            _loans[id(loan)] = loan
        return ArrayPayload(array, ref.dtype)

    def release(self, ref: TensorRef) -> None:
        """Give the slot back unread."""
        try:
            give_back(self._arena_at(ref.place).words, ref.key, SENT)
        except KeyError:  # its owner is gone, and the slot with it
            return

    def drop(self, ref: TensorRef) -> None:
        """Free the slot."""
        if self._slots:
            self._slots.free(ref.key)

    def forget(self, receiver: Address) -> None:
        """Free the slots of a receiver that is gone, and unmap the arenas of owners that are."""
        if self._slots:
            self._slots.forget(receiver)
        with self._lock:
            gone = [place for place in self._arenas if not exists(_local(place))]
            for place in gone:
                del self._arenas[place]

    def samples(self) -> list[Sample]:
        """Slots and bytes in use."""
        slots, used = self._slots.in_use() if self._slots else (0, 0)
        return [
            Sample("mstar_shared_tensors", "gauge", "Tensors in this party's shared memory.", {}, slots),
            Sample("mstar_shared_bytes", "gauge", "Bytes of this party's shared memory in use.", {}, used),
        ]

    def close(self) -> None:
        """Give up the arena; what others have mapped stays, and so does what was taken here."""
        if self._arena:
            self._arena.close()
        self._arena = self._slots = None
        with self._lock:
            self._arenas.clear()

    def _arena_at(self, place: str) -> Arena:
        arena = self._arenas.get(place)
        if arena is None:
            if not place.startswith(f"{self._host}/"):
                raise KeyError(f"the arena at {place} is on another host than {self._host}")
            with self._lock:
                arena = self._arenas[place] = open_arena(_local(place))
        return arena


def _own_arena(length: int) -> OwnArena | None:
    if not SUPPORTED or not length:
        return None
    try:
        return OwnArena(length)
    except OSError as error:
        _log.warning("no shared memory (%s): tensors travel in messages", error)
        return None


def _local(place: str) -> str:
    return place.partition("/")[2]
