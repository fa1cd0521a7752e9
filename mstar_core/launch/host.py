"""`mstar host`: starts and watches workers for a server on another host, one server after the other."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import NoReturn

import msgspec
import zmq

import mstar_core
from mstar_core.errors import ConfigurationError
from mstar_core.launch.base import Party, Watch
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
from mstar_core.launch.job import Setup
from mstar_core.launch.link import Link
from mstar_core.launch.plan import any_port
from mstar_core.launch.processes import ProcessLauncher
from mstar_core.wire.address import Keys
from mstar_core.wire.messages import Address

_log = logging.getLogger(__name__)

_KILL_S = 5.0
"""How long the system may take to end processes that were killed."""


class Host:
    """Listens at `listen` (`tcp://ADDRESS:PORT`) for a server that has the keys of the file `keys`.

    Workers log to standard error as `log_format` and `log_level` say. Raises `ConfigurationError` when it cannot
    listen, or the key file is not good.
    """

    def __init__(self, listen: str, keys: Path, *, log_format: str = "text", log_level: str = "info") -> None:
        if listen.removeprefix("tcp://").rpartition(":")[0] in ("*", "0.0.0.0", "[::]"):
            raise ConfigurationError(
                f"{listen}: name the address of one interface, at which the server reaches this host"
            )
        pair = Keys.load(keys)
        self._keys = str(keys.resolve())
        self._logs = (log_format, log_level)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._link = Link(self._context, listen, pair, listens=True)
        except BaseException:
            self._context.term()
            raise
        self._session: _Session | None = None

    @property
    def endpoint(self) -> str:
        """Where it listens, with the real port."""
        return self._link.endpoint

    def run(self) -> NoReturn:
        """Serve one server after the other, until something is raised (Ctrl-C); then every worker is ended."""
        due = 0.0
        try:
            while True:
                for peer, message in self._link.receive(max(0.0, due - time.monotonic())):
                    self._handle(peer, message)
                if time.monotonic() >= due:
                    due = time.monotonic() + ALIVE_S
                    self._look_after_session()
        finally:
            if self._session is not None:
                self._link.send(Detach(self._session.name), self._session.peer)
                self._end_session("this host goes")
            self._link.close()
            self._context.term()

    def _look_after_session(self) -> None:
        session = self._session
        if session is None:
            return
        if time.monotonic() - session.heard > SILENCE_S:
            self._end_session(f"its server was not heard of for {SILENCE_S:g} s")
        else:
            self._link.send(Alive(session.name), session.peer)

    def _handle(self, peer: bytes, message: HostMessage) -> None:
        session = self._session
        if isinstance(message, Attach):
            self._attach(peer, message)
            return
        if session is None or message.session != session.name:
            return
        session.heard = time.monotonic()
        match message:
            case StartWorker():
                session.start(message)
            case EndWorker():
                session.end(message.number, now=message.now)
            case Detach():
                self._end_session("its server has left")

    def _attach(self, peer: bytes, attach: Attach) -> None:
        if attach.version != mstar_core.__version__:
            reason = f"has mstar-core {mstar_core.__version__}, the server {attach.version}"
            self._link.send(Refused(attach.session, reason, passing=False), peer)
            return
        if self._session is not None and self._session.server != attach.server:
            self._link.send(Refused(attach.session, "serves another server", passing=True), peer)
            return
        if self._session is not None and self._session.name != attach.session:
            self._end_session("its server begins anew")
        if self._session is None:
            self._session = _Session(peer, attach, self._adapted(attach.setup), self._link)
            _log.info("workers are started for server %s", attach.server)
        self._session.heard = time.monotonic()
        self._link.send(Attached(attach.session), peer)

    def _adapted(self, setup: Setup) -> Setup:
        """What is this host's own affair."""
        return msgspec.structs.replace(setup, keys=self._keys, log_format=self._logs[0], log_level=self._logs[1])

    def _end_session(self, reason: str) -> None:
        assert self._session is not None
        session, self._session = self._session, None
        _log.info("server %s: %s; its workers are ended", session.server, reason)
        session.close()


class _Session:
    """One server's workers. The methods belong to the host's loop."""

    def __init__(self, peer: bytes, attach: Attach, setup: Setup, link: Link) -> None:
        self.peer = peer
        self.name = attach.session
        self.server = attach.server
        self.heard = time.monotonic()
        self._link = link
        self._launcher = ProcessLauncher(setup, any_port(link.endpoint))
        self._live: dict[int, Party] = {}
        self._changed = threading.Condition()

    def start(self, order: StartWorker) -> None:
        """Start a worker; what becomes of it is told to the server."""
        number = order.number

        def bound(address: Address) -> None:
            self._tell(WorkerBound(self.name, number, address))

        def ended(reason: str) -> None:
            with self._changed:
                self._live.pop(number, None)
                self._changed.notify_all()
            self._tell(WorkerEnded(self.name, number, reason))

        with self._changed:  # `ended` may come at once, and must find the worker
            try:
                self._live[number] = self._launcher.start(order.job, Watch(bound, ended))
            except OSError as error:
                self._tell(WorkerEnded(self.name, number, f"cannot be started: {error}"))

    def end(self, number: int, *, now: bool) -> None:
        """Ask a worker to leave, or end it."""
        party = self._live.get(number)
        if party is not None and now:
            party.kill()
        elif party is not None:
            party.stop()

    def close(self) -> None:
        """End every worker, and return when they have ended."""
        for party in list(self._live.values()):
            party.kill()
        with self._changed:
            self._changed.wait_for(lambda: not self._live, _KILL_S)
        self._launcher.close()

    def _tell(self, message: HostMessage) -> None:
        def send() -> None:
            self._link.send(message, self.peer)

        self._link.order(send)
