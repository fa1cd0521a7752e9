"""What other threads want of a loop: done on the loop's thread, in order, and nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mstar_core.wire.mailbox import Waker


class Orders:
    """Calls for the loop that `waker` wakes. `put` is for any thread, `do` and `close` are for the loop."""

    def __init__(self, waker: Waker) -> None:
        self._waker = waker
        self._lock = threading.Lock()
        self._calls: list[Callable[[], None]] = []
        self._closed = False

    def put(self, call: Callable[[], None]) -> bool:
        """Have the loop make a call, after all that were put before. False when the loop has ended."""
        with self._lock:
            if self._closed:
                return False
            self._calls.append(call)
            if len(self._calls) == 1:
                self._waker.wake()
            return True

    def do(self) -> None:
        """Make the calls that were put."""
        with self._lock:
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    def close(self) -> None:
        """Take no more calls; those that were not made are forgotten."""
        with self._lock:
            self._closed = True
            self._calls.clear()
            self._waker.close()
