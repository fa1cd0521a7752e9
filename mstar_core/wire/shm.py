"""The `shm` transport: tensors in memory that the processes of a host share. Torch-free.

Each party has an arena of its own (`wire/arena.py`). Publishing copies a tensor into a slot of it; the receiver maps
the arena once, and then takes tensors without a copy: its array is the slot. When the array and its views are gone, a
word in the slot's header says so, without a message, and the owner frees the slot when it next needs room.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from typing import NamedTuple

import numpy as np

from mstar_core.wire.arena import (
    FREE,
    HELD,
    READ,
    SENT,
    SUPPORTED,
    TAKEN,
    UNIT,
    WORDS,
    Arena,
    OwnArena,
    exists,
    open_arena,
)
from mstar_core.wire.messages import Address, Sample, TensorRef
from mstar_core.wire.spans import Spans
from mstar_core.wire.store import INPROC
from mstar_core.wire.transport import ArrayPayload, Payload, Transport, numpy_dtype

_log = logging.getLogger(__name__)

SHARED_BYTES = 256 * 2**20
"""The default length of a party's arena."""

_FEW, _MANY = 4, 1024
"""How many of the oldest slots are looked at before each allocation, and after one that found no room."""

_SEQUENCES = 2**31
"""Sequence numbers start again here, so that a key (sequence and unit, 32 bits each) fits a signed 64-bit integer."""


class _Slot(NamedTuple):
    units: int
    receiver: Address | None


class SharedMemory(Transport):
    """One party's arena, and its mappings of others' arenas. `place` names host, process, descriptor and a token."""

    name = "shm"
    smallest = 4097
    """Up to a page, two copies through the message cost less than a slot."""

    def __init__(self, host: str, length: int) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._spans = Spans(length // UNIT)
        self._slots: dict[int, _Slot] = {}
        """By key."""
        self._sent: deque[int] = deque()
        """Keys of slots whose receivers will say that they have read them, and some that are gone."""
        self._sequence = 0
        self._arena = _own_arena(self._spans.length * UNIT)
        self._place = f"{host}/{self._arena.place}" if self._arena else ""
        self._peers: dict[str, Arena] = {self._place: self._arena} if self._arena else {}

    def reaches(self, receiver: Address) -> bool:
        """Processes of this host."""
        return self._arena is not None and receiver.host == self._host and not receiver.near.startswith(INPROC)

    def publish(self, payload: Payload, receiver: Address | None) -> TensorRef | None:
        """Copy a tensor into a slot."""
        assert self._arena is not None
        with self._lock:
            key = self._allocate(1 + -(-payload.nbytes // UNIT), receiver)
        if key is None:
            return None
        unit = key % 2**32
        payload.write(self._arena.array(unit, (payload.nbytes,), np.dtype(np.uint8)))
        self._arena.words[unit * WORDS] = HELD if receiver is None else SENT
        return TensorRef(payload.dtype, payload.shape, None, self.name, self._place, key, receiver is None)

    def reachable(self, ref: TensorRef) -> bool:
        """Whether its arena is on this host."""
        return self._arena is not None and ref.place.startswith(f"{self._host}/")

    def take(self, ref: TensorRef) -> Payload:
        """The slot itself, given back when the array dies."""
        arena, unit = self._peer(ref.place), ref.key % 2**32
        state = arena.words[unit * WORDS]
        if state not in (SENT, HELD) or arena.words[unit * WORDS + 1] != ref.key >> 32:
            raise KeyError(f"tensor {ref.key} at {ref.place} is gone")
        array = arena.array(unit, ref.shape, numpy_dtype(ref.dtype))
        if state == SENT:
            arena.words[unit * WORDS] = TAKEN
            weakref.finalize(array, arena.words.__setitem__, unit * WORDS, READ).atexit = False
        return ArrayPayload(array, ref.dtype)

    def release(self, ref: TensorRef) -> None:
        """Say that the slot has been read."""
        try:
            arena = self._peer(ref.place)
        except KeyError:
            return
        word = ref.key % 2**32 * WORDS
        if arena.words[word] == SENT and arena.words[word + 1] == ref.key >> 32:
            arena.words[word] = READ

    def drop(self, ref: TensorRef) -> None:
        """Free the slot."""
        with self._lock:
            if ref.key in self._slots:
                self._free(ref.key)

    def forget(self, receiver: Address) -> None:
        """Free the slots of a receiver that is gone, and unmap the arenas of owners that are."""
        with self._lock:
            for key in [key for key, slot in self._slots.items() if slot.receiver == receiver]:
                self._free(key)
            for place in [place for place in self._peers if place != self._place and not _exists(place)]:
                del self._peers[place]

    def samples(self) -> list[Sample]:
        """Slots and bytes in use."""
        with self._lock:
            self._reclaim(len(self._sent))
            slots, used = len(self._slots), (self._spans.length - self._spans.free_units) * UNIT
        return [
            Sample("mstar_shared_tensors", "gauge", "Tensors in this party's shared memory.", {}, slots),
            Sample("mstar_shared_bytes", "gauge", "Bytes of this party's shared memory in use.", {}, used),
        ]

    def close(self) -> None:
        """Give up the arena; what others have mapped stays."""
        if self._arena:
            self._arena.close()
            self._arena = None
        self._peers.clear()

    def _allocate(self, units: int, receiver: Address | None) -> int | None:
        assert self._arena is not None
        self._reclaim(_FEW)
        unit = self._spans.allocate(units)
        if unit is None:
            self._reclaim(_MANY)
            unit = self._spans.allocate(units)
        if unit is None:
            return None
        self._sequence = (self._sequence + 1) % _SEQUENCES
        self._arena.words[unit * WORDS + 1] = self._sequence
        key = self._sequence << 32 | unit
        self._slots[key] = _Slot(units, receiver)
        if receiver is not None:
            self._sent.append(key)
        return key

    def _reclaim(self, most: int) -> None:
        """Free what was read among the oldest slots; those that were not read go to the end of the line."""
        assert self._arena is not None
        for _ in range(min(most, len(self._sent))):
            key = self._sent.popleft()
            if key not in self._slots:
                continue
            if self._arena.words[key % 2**32 * WORDS] == READ:
                self._free(key)
            else:
                self._sent.append(key)

    def _free(self, key: int) -> None:
        assert self._arena is not None
        unit = key % 2**32
        self._arena.words[unit * WORDS] = FREE
        self._spans.free(unit, self._slots.pop(key).units)

    def _peer(self, place: str) -> Arena:
        arena = self._peers.get(place)
        if arena is None:
            host, _, local_place = place.partition("/")
            if host != self._host:
                raise KeyError(f"the arena at {place} is on another host than {self._host}")
            arena = self._peers[place] = open_arena(local_place)
        return arena


def _own_arena(length: int) -> OwnArena | None:
    if not SUPPORTED or not length:
        return None
    try:
        return OwnArena(length)
    except OSError as error:
        _log.warning("no shared memory (%s): tensors travel in messages", error)
        return None


def _exists(place: str) -> bool:
    return exists(place.partition("/")[2])
