"""What a request has emitted and its client has not read: bounded, so that a slow reader costs little."""

from __future__ import annotations

from collections.abc import Callable

from mstar_core.wire.messages import EMIT_WINDOW


class Outlet:
    """Counts one request's unread outputs. Runs of walks that emit begin only while there is `room`.

    What such a run emits goes out at once, so the window may be exceeded by the runs under way when it filled up.
    """

    __slots__ = ("_unread", "_waiters")

    def __init__(self) -> None:
        self._unread = 0
        self._waiters: list[Callable[[], None]] = []

    def room(self) -> bool:
        """Whether a run that may emit can begin."""
        return self._unread < EMIT_WINDOW

    def emitted(self) -> None:
        """One output is on its way."""
        self._unread += 1

    def read(self, outputs: int) -> None:
        """The client has taken that many."""
        self._unread -= outputs
        if self._waiters and self.room():
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter()

    def when_room(self, waiter: Callable[[], None]) -> None:
        """Call `waiter`, once, when there is room again."""
        self._waiters.append(waiter)
