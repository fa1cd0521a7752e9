"""What ties a child's life to its parent's, and how it leaves when it is asked to.

Standard input is a pipe whose other end only the parent has: its end means that the parent is gone, however it went.
SIGTERM asks the child to leave. SIGINT is for the parent: Ctrl-C reaches every process in the foreground, and the
parent lets requests end first. However the child comes to leave, it is gone `GRACE_S` later, whatever it is doing.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from mstar_core.launch.directory import remove

GRACE_S = 2.0
"""Time to leave the loop, close sockets and free shared memory."""

_STDIN = 0


class Lifeline:
    """Watches on a thread of its own. Made in the main thread, since it handles signals.

    `stop` makes the party leave its loop; it is called once, from another thread. `directory` is removed when the
    parent is gone, since nobody else will.
    """

    def __init__(self, stop: Callable[[], None], directory: Path) -> None:
        self._stop = stop
        self._directory = directory
        self._lock = threading.Lock()
        self._leaving = False
        self._signals, sender = os.pipe()
        os.set_blocking(sender, False)
        signal.signal(signal.SIGTERM, lambda number, frame: None)  # what counts is the byte in the pipe
        signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def leaving(self) -> None:
        """The party has left its loop by itself: what remains has `GRACE_S` to end. `stop` is no longer called."""
        with self._lock:
            if not self._leaving:
                self._leaving = True
                _end_soon()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(_STDIN, select.POLLIN)
        poll.register(self._signals, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if _STDIN in ready:  # the parent sends nothing after the job: this is the end
                remove(self._directory)
                self._leave()
                return
            if signal.SIGTERM in os.read(self._signals, 64):
                self._leave()

    def _leave(self) -> None:
        with self._lock:
            if not self._leaving:
                self._leaving = True
                _end_soon()
                self._stop()


def ignore_interrupts() -> None:
    """Leave SIGINT to the parent, which has kept it back from this process until now."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_soon() -> None:
    timer = threading.Timer(GRACE_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
