"""Workers on another host, where `mstar host` starts and watches them for this server."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from dataclasses import dataclass

import zmq

import mstar_core
from mstar_core.launch.base import Launcher, Party, Watch
from mstar_core.launch.host_messages import (
    ALIVE_S,
    SILENCE_S,
    Alive,
    Attach,
    Attached,
    Detach,
    EndWorker,
    HostMessage,
    Refused,
    StartWorker,
    WorkerBound,
    WorkerEnded,
)
from mstar_core.launch.job import PartyJob, Setup, WorkerJob
from mstar_core.launch.lifeline import GRACE_S
from mstar_core.launch.link import Link
from mstar_core.wire.address import Keys

_log = logging.getLogger(__name__)

_REFUSALS_S = 2 * SILENCE_S
"""How long a host may say that it serves another server: one that was killed is noticed after `SILENCE_S`."""

_COMPLAINT_S = 10.0
"""How often a host that does not answer is complained of."""


@dataclass(slots=True, eq=False)
class _Remote:
    """A worker that the host is to start, or has."""

    job: WorkerJob
    watch: Watch
    started: bool = False


class HostLauncher(Launcher):
    """Starts workers on the host `name`, whose `mstar host` listens at `address`.

    A thread keeps the connection. What is to be started while the host is away is started when it comes; a host that
    goes away takes its workers with it.
    """

    patience_s = GRACE_S + 2.0

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], name: str, address: str, keys: Keys, setup: Setup
    ) -> None:
        self._name = f"host {name!r} at {address}"
        self._setup = setup
        self._server = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._workers: dict[int, _Remote] = {}
        self._link = Link(context, address, keys, listens=False)
        self._attached = False
        self._refused_since: float | None = None
        self._leaving = False
        self._begin_session()
        self._complained = time.monotonic() - _COMPLAINT_S / 2
        self._thread = threading.Thread(target=self._run, name=f"host {name}", daemon=True)
        self._thread.start()

    def start(self, party: PartyJob, watch: Watch) -> Party:
        """Start a worker there, as soon as the host answers."""
        assert isinstance(party, WorkerJob)
        number = next(self._numbers)

        def start() -> None:
            self._workers[number] = _Remote(party, watch)
            self._start_waiting()

        self._link.order(start)
        return _RemoteParty(self, number)

    def end(self, number: int, *, now: bool) -> None:
        """End a worker; from any thread."""
        self._link.order(lambda: self._end(number, now))

    def close(self) -> None:
        """Leave the host to other servers."""

        def leave() -> None:
            self._leaving = True

        self._link.order(leave)
        self._thread.join()

    def _run(self) -> None:
        due = 0.0
        while not self._leaving:
            for _, message in self._link.receive(max(0.0, due - time.monotonic())):
                if message.session == self._session:
                    self._heard = time.monotonic()
                    self._handle(message)
            if time.monotonic() >= due:
                due = time.monotonic() + ALIVE_S
                self._say_something()
        self._link.send(Detach(self._session))
        self._link.close()

    def _say_something(self) -> None:
        silent = time.monotonic() - self._heard
        if not self._attached:
            self._link.send(Attach(self._session, self._server, mstar_core.__version__, self._setup))
            if silent > SILENCE_S and time.monotonic() - self._complained > _COMPLAINT_S:
                self._complained = time.monotonic()
                _log.warning("%s does not answer: is 'mstar host' running there, with the same keys?", self._name)
        elif silent > SILENCE_S:
            self._lose(f"was on {self._name}, which was not heard of for {SILENCE_S:g} s")
        else:
            self._link.send(Alive(self._session))

    def _handle(self, message: HostMessage) -> None:
        match message:
            case Attached():
                self._attached, self._refused_since = True, None
                self._start_waiting()
            case Refused():
                self._refused(message)
            case WorkerBound():
                if message.number in self._workers:
                    self._workers[message.number].watch.bound(message.address)
            case WorkerEnded():
                if message.number in self._workers:
                    self._workers.pop(message.number).watch.ended(message.reason)
            case Detach():
                self._lose(f"was on {self._name}, which has gone")

    def _refused(self, refused: Refused) -> None:
        self._refused_since = self._refused_since or time.monotonic()
        if not refused.passing or time.monotonic() - self._refused_since > _REFUSALS_S:
            self._lose(f"cannot be started: {self._name} {refused.reason}")

    def _start_waiting(self) -> None:
        for number, worker in self._workers.items():
            if self._attached and not worker.started:
                worker.started = self._link.send(StartWorker(self._session, number, worker.job))

    def _end(self, number: int, now: bool) -> None:
        worker = self._workers.get(number)
        if worker is None:
            return
        if worker.started and self._link.send(EndWorker(self._session, number, now)):
            return
        self._workers.pop(number).watch.ended(f"was never started: {self._name} does not answer")

    def _lose(self, reason: str) -> None:
        """The session is over, and with it every worker."""
        self._begin_session()
        lost, self._workers = self._workers, {}
        for worker in lost.values():
            worker.watch.ended(reason)

    def _begin_session(self) -> None:
        self._session = secrets.token_hex(8)
        self._attached = False
        self._refused_since = None
        self._heard = time.monotonic()


class _RemoteParty(Party):
    """A worker there."""

    def __init__(self, launcher: HostLauncher, number: int) -> None:
        self._launcher = launcher
        self._number = number

    def stop(self) -> None:
        """Have SIGTERM sent to it."""
        self._launcher.end(self._number, now=False)

    def kill(self) -> None:
        """Have SIGKILL sent to it."""
        self._launcher.end(self._number, now=True)
