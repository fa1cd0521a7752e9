"""Which requests hold KV pages, and who gets them when there are too few.

Older requests come first. A call that finds no pages waits; while it waits, younger requests take no new ones; and
when nothing runs at all, the youngest request is parked. So the oldest request always gets on, and nobody starves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from mstar_core.engines.base import Call, NodeRequest
from mstar_core.engines.page_work import PageWork
from mstar_core.engines.pages import OutOfPages
from mstar_core.engines.parking import Parked, park, resume
from mstar_core.engines.reservations import Reservation
from mstar_core.engines.sampling import SamplerSettings
from mstar_core.engines.segments import Part
from mstar_core.engines.sequences import SequenceStore
from mstar_core.errors import InvalidRequest

_PATIENCE = 16
"""How many batches after its last try a waiting request still holds younger ones back."""


@dataclass(slots=True, eq=False)
class Resident:
    """One open request in one KV engine. `slot` is its row in history tables; `midway` says that a prefill was cut and
    has not come to its end, `pieces` are the ragged outputs of the steps that a cut call has run so far (the end of one
    and the beginning of the next may both be in flight)."""

    request: NodeRequest
    order: int
    slot: int
    settings: Mapping[str, SamplerSettings]
    in_flight: int = 0
    midway: bool = False
    parked: Parked | None = None
    pieces: dict[Call, list[dict[str, torch.Tensor]]] = field(default_factory=dict)


class Residents:
    """The open requests of one engine and their pages."""

    def __init__(self, store: SequenceStore, work: PageWork) -> None:
        self.store = store
        self.work = work
        self.by_key: dict[int, Resident] = {}
        self._opened = 0
        self._in_flight = 0  # calls collected but neither finished nor dropped
        self._free_slots: list[int] = []
        self._tries = 0
        self._waiting: dict[int, tuple[int, int]] = {}  # key -> (order, number of the last try)

    @property
    def slots(self) -> int:
        """The largest slot that was ever in use."""
        return len(self._free_slots) + len(self.by_key)

    def open(self, request: NodeRequest, settings: Mapping[str, SamplerSettings]) -> Resident:
        """Make room for a request's bookkeeping."""
        self.store.open(request.key)
        slot = self._free_slots.pop() if self._free_slots else len(self.by_key) + 1
        resident = Resident(request, self._opened, slot, settings)
        self._opened += 1
        self.by_key[request.key] = resident
        return resident

    def close(self, request: NodeRequest) -> None:
        """Free everything that a request holds."""
        resident = self.by_key.pop(request.key)
        self._free_slots.append(resident.slot)
        self._waiting.pop(request.key, None)
        self.store.close(request.key)

    def leave(self, resident: Resident) -> Parked:
        """Take away what an idle request holds; it stays open. The contents appear when the queued work is done."""
        assert resident.in_flight == 0, "a request cannot leave while a call of it is in flight"
        assert not resident.midway, "a request cannot leave in the middle of a prefill"
        self._waiting.pop(resident.request.key, None)
        if resident.parked is None:
            self._park(resident)
        parked, resident.parked = resident.parked, None
        assert parked is not None
        return parked

    def enter(self, resident: Resident, parked: Parked) -> None:
        """Give an empty request what it held elsewhere, as if it had been parked here."""
        assert resident.parked is None, "a request enters where it is empty"
        assert not self.store.names(resident.request.key), "a request enters where it is empty"
        resident.parked = parked

    def reserve(
        self, resident: Resident, parts: Sequence[Part], *, first: bool, stuck: bool = False
    ) -> Reservation | None:
        """Pages for one step of a call; None when it has to wait.

        `first` says that the batch is still empty, `stuck` that no other call can run either: then even older
        requests are parked, since they wait for something else than this engine. Raises `InvalidRequest` when the
        request could not be served by the whole pool.
        """
        self._tries += 1
        idle = first and self._in_flight == 0
        while True:
            try:
                reservation = self._attempt(resident, parts, yielding=not idle)
            except OutOfPages as shortage:
                if idle and self._park_youngest(resident, older_too=stuck):
                    continue
                if idle and self.store.allocator.used == self.store.held(resident.request.key):
                    raise self._impossible(shortage.wanted + self.store.allocator.used) from None
                self._waiting[resident.request.key] = (resident.order, self._tries)
                return None
            self._waiting.pop(resident.request.key, None)
            return reservation

    def took_off(self, entry: Entry) -> None:
        """A call is in a batch now."""
        entry.resident.in_flight += 1
        self._in_flight += 1

    def landed(self, entry: Entry) -> None:
        """A call's batch was finished, or the call dropped."""
        entry.resident.midway = entry.done > 0 if entry.dropped else not entry.final
        entry.resident.in_flight -= 1
        self._in_flight -= 1

    def check_integrity(self) -> None:
        """Raise AssertionError unless pages, slots and parked requests agree."""
        self.store.check_integrity()
        used = [resident.slot for resident in self.by_key.values()]
        assert sorted(used + self._free_slots) == list(range(1, self.slots + 1)), "slots are lost or taken twice"
        for key, resident in self.by_key.items():
            assert resident.parked is None or self.store.held(key) == 0, "a parked request holds pages"

    def _attempt(self, resident: Resident, parts: Sequence[Part], *, yielding: bool) -> Reservation:
        key, free, parked = resident.request.key, self.store.allocator.free, resident.parked
        loading = None if parked is None else self.work.load(parked, resume(self.store, key, parked))
        reservation = Reservation(self.store, self.work, key)
        try:
            for index, part in enumerate(parts):
                reservation.add(part, parts[index + 1 :])
            if yielding and self.store.allocator.free < free and self._older_waits(resident):
                raise OutOfPages(0, self.store.allocator.free)
        except (OutOfPages, ValueError) as problem:
            needed = self.store.held(key) + (problem.wanted if isinstance(problem, OutOfPages) else 0)
            reservation.rollback()
            if loading is not None:
                self.store.clear(key)
                self.work.take_back(loading)
            if needed > self.store.allocator.pages:
                raise self._impossible(needed) from None
            raise
        resident.parked = None
        return reservation

    def _impossible(self, pages: int) -> InvalidRequest:
        size = self.store.page_size
        needed, pool = pages * size, self.store.allocator.pages * size
        return InvalidRequest(
            f"the request needs {needed} tokens of KV cache, the whole pool holds {pool}; "
            "shorten the input or the output, or give the node a larger pool"
        )

    def _older_waits(self, resident: Resident) -> bool:
        return any(order < resident.order and self._tries - last <= _PATIENCE for order, last in self._waiting.values())

    def _park_youngest(self, than: Resident, *, older_too: bool) -> bool:
        """Park the youngest request that holds pages and is younger (or just another one); False when there is none."""
        others = [
            resident
            for key, resident in self.by_key.items()
            if resident is not than and resident.parked is None and self.store.held(key) > 0
        ]
        candidates = [resident for resident in others if older_too or resident.order > than.order]
        if not candidates:
            return False
        self._park(max(candidates, key=lambda resident: resident.order))
        return True

    def _park(self, resident: Resident) -> None:
        resident.parked, pages = park(self.store, resident.request.key)
        self.work.save(resident.parked, pages)


@dataclass(slots=True, eq=False)
class Entry:
    """A call in a batch: what it runs in this step, or why it cannot run at all. Without either it does nothing."""

    call: Call
    resident: Resident
    parts: Sequence[Part] = ()
    reservation: Reservation | None = None
    final: bool = True
    done: int = 0
    pieces_before: int = 0
    error: Exception | None = None
    dropped: bool = False

    @property
    def tokens(self) -> int:
        """Tokens that the step runs for the call."""
        return sum(part.tokens for part in self.parts)
