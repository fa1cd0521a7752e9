"""A request as the frontend knows it, until its end is delivered."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mstar_core.client.ticket import Ticket
from mstar_core.wire.messages import EMIT_WINDOW, Address, Ended

REPORTED = EMIT_WINDOW // 4
"""After how many outputs a worker hears that they were read: few messages, long before the window is full."""


class Reader:
    """Counts what the reader of a ticket took of one worker's outputs, and reports it now and then."""

    __slots__ = ("_report", "_taken")

    def __init__(self, report: Callable[[int], None]) -> None:
        self._report = report
        self._taken = 0

    def took(self) -> None:
        """One more. Called by one reader at a time."""
        self._taken += 1
        if self._taken == REPORTED:
            self._taken = 0
            self._report(REPORTED)


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request whose end was not delivered yet.

    `number` is its ticket's; `received` counts what was emitted, and `begun` says that more than progress came;
    `readers` tell each worker what was read of its own.
    """

    number: int
    model: str
    ticket: Ticket
    since: float = field(default_factory=time.monotonic)
    received: int = 0
    begun: bool = False
    readers: dict[Address, Reader] = field(default_factory=dict)
    ended: Ended | None = None

    @property
    def age(self) -> float:
        """Seconds since it was submitted."""
        return time.monotonic() - self.since

    @property
    def complete(self) -> bool:
        """Whether its end can be delivered: all outputs before it have arrived. A failure does not wait for them."""
        ended = self.ended
        return ended is not None and (ended.error is not None or self.received >= ended.emitted)
