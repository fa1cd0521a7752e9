"""The slots of a party's own arena: where what it publishes lies until it has been read. Torch-free.

Receivers say in a slot's header that they have read it (`wire/arena.py`); the owner looks at a few of the oldest slots
whenever it needs room, and so frees them without a message.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mstar_core.wire.arena import FREE, HELD, READ, SENT, UNIT, OwnArena, header
from mstar_core.wire.messages import Address
from mstar_core.wire.spans import Spans

if TYPE_CHECKING:
    from mstar_core.wire.transport import Payload

_FEW, _MANY = 4, 1024
"""How many of the oldest slots are looked at before each allocation, and after one that found no room."""

_SEQUENCES = 2**31
"""Sequence numbers start again here, so that a key (sequence and unit, 32 bits each) fits a signed 64-bit integer."""


class _Slot(NamedTuple):
    units: int
    receiver: Address | None


class Slots:
    """Slots in `arena`, by key. Safe from any thread."""

    def __init__(self, arena: OwnArena) -> None:
        self._arena = arena
        self._lock = threading.Lock()
        self._spans = Spans(arena.length // UNIT)
        self._slots: dict[int, _Slot] = {}
        self._sent: deque[int] = deque()
        """Keys of slots whose receivers will say that they have read them, oldest first; some may be freed already."""
        self._sequence = 0

    def publish(self, payload: Payload, receiver: Address | None) -> int | None:
        """Copy a tensor into a slot for a receiver, or for all (None); its key, or None when there is no room."""
        with self._lock:
            key = self._allocate(1 + -(-payload.nbytes // UNIT), receiver)
        if key is None:
            return None
        unit, state = header(key)
        try:
            payload.write(self._arena.array(unit, (payload.nbytes,), np.dtype(np.uint8)))
        except BaseException:
            self.free(key)
            raise
        self._arena.words[state] = HELD if receiver is None else SENT
        return key

    def free(self, key: int) -> None:
        """Free a slot that nobody reads any more; one that is free already is fine."""
        with self._lock:
            if key in self._slots:
                self._free(key)

    def forget(self, receiver: Address) -> None:
        """Free the slots of a receiver that is gone."""
        with self._lock:
            for key in [key for key, slot in self._slots.items() if slot.receiver == receiver]:
                self._free(key)

    def in_use(self) -> tuple[int, int]:
        """How many slots, and how many bytes, have not been read yet."""
        with self._lock:
            self._reclaim(len(self._sent))
            return len(self._slots), (self._spans.length - self._spans.free_units) * UNIT

    def _allocate(self, units: int, receiver: Address | None) -> int | None:
        self._reclaim(_FEW)
        unit = self._spans.allocate(units)
        if unit is None:
            self._reclaim(_MANY)
            unit = self._spans.allocate(units)
        if unit is None:
            return None
        self._sequence = (self._sequence + 1) % _SEQUENCES
        key = self._sequence << 32 | unit
        _, state = header(key)
        self._arena.words[state] = FREE  # until it is written; so far it may be any part of an earlier tensor
        self._arena.words[state + 1] = self._sequence
        self._slots[key] = _Slot(units, receiver)
        if receiver is not None:
            self._sent.append(key)
        return key

    def _reclaim(self, most: int) -> None:
        """Free what was read among the oldest slots; those that were not read go to the end of the line."""
        for _ in range(min(most, len(self._sent))):
            key = self._sent.popleft()
            if key not in self._slots:
                continue
            _, state = header(key)
            if self._arena.words[state] == READ:
                self._free(key)
            else:
                self._sent.append(key)

    def _free(self, key: int) -> None:
        unit, state = header(key)
        self._arena.words[state] = FREE
        self._spans.free(unit, self._slots.pop(key).units)
