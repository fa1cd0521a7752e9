"""Parties as threads of this process, which talk over `inproc://`: `mstar run`, `Engine`, notebooks, tests."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import zmq

from mstar_core.launch.base import LocalLauncher, Party, Watch
from mstar_core.launch.job import ConductorJob, PartyJob
from mstar_core.launch.parties import failure, run_conductor, run_worker
from mstar_core.spec.placement import Placement
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Stop
from mstar_core.wire.store import LocalStore

if TYPE_CHECKING:
    from mstar_core.worker.launch import ModelSource

_log = logging.getLogger(__name__)


class ThreadLauncher(LocalLauncher):
    """Starts threads over one context, whose tensors are handed over by reference.

    A thread cannot be ended from outside, so one that is asked to leave gets the time that a batch may need.
    """

    patience_s = 30.0

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], sources: Sequence[ModelSource], placement: Placement
    ) -> None:
        self.local = LocalStore()
        self._context = context
        self._sources = sources
        self._placement = placement
        self._numbers = itertools.count(1)

    def near(self, name: str) -> str:
        """An inproc endpoint."""
        return f"inproc://{name}"

    def start(self, party: PartyJob, watch: Watch) -> Party:
        """Start a thread."""
        if isinstance(party, ConductorJob):
            mailbox = Mailbox(self._context, self.near("conductor"))
            specs = [source.spec for source in self._sources]
            body = partial(run_conductor, party, mailbox, specs, self._placement)
        else:
            mailbox = Mailbox(self._context, self.near(f"worker-{next(self._numbers)}"))
            body = partial(run_worker, party, mailbox, self._sources, self._placement, self.local)
        watch.bound(mailbox.address)
        return _Thread(party.title, mailbox, body, watch.ended)

    def close(self) -> None:
        """Nothing is held."""


class _Thread(Party):
    """Runs a party. `ended` is called when it has left its loop, on its thread."""

    def __init__(self, title: str, mailbox: Mailbox, run: Callable[[], None], ended: Callable[[str], None]) -> None:
        self._title = title
        self._waker = mailbox.waker()
        self._run = run
        self._ended = ended
        self._lock = threading.Lock()
        self._alive = True
        threading.Thread(target=self._guarded, name=f"mstar {title}", daemon=True).start()

    def stop(self) -> None:
        """Send it `Stop`."""
        with self._lock:
            if self._alive:
                self._waker.send(Stop())

    def kill(self) -> None:
        """Say that it stays."""
        _log.warning("the thread of the %s does not leave, and a thread cannot be ended: it is left alone", self._title)

    def _guarded(self) -> None:
        reason = "left its loop"
        try:
            self._run()
        except Exception as error:  # isolation boundary: a party's thread; the others must hear of its end
            reason = failure(self._title, error)
        with self._lock:
            self._alive = False
            self._waker.close()
        self._ended(reason)
