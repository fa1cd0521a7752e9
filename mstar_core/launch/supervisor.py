"""Watches over the Conductor and the workers: starts them, starts them again when they end, and ends them.

While the server starts, the first party that ends ends the start. Later a worker that ends is reported to the Conductor
at once and started again after a while (`Backoff`), at a new endpoint. A Conductor that ends takes all requests with
it; a new one is started at the same address and told the workers that live.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import zmq

from mstar_core.conductor.models import READY
from mstar_core.conductor.workers import SILENCE_S, SILENT
from mstar_core.errors import Unavailable
from mstar_core.launch.backoff import Backoff
from mstar_core.launch.base import Launcher, Party, Watch
from mstar_core.launch.job import ConductorJob, PartyJob, WorkerJob
from mstar_core.launch.plan import Plan
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Address, ServerState, WorkerFailed

_log = logging.getLogger(__name__)

CONDUCTOR = "conductor"
"""What the Conductor is called among the parties."""

_KILL_S = 5.0
"""How long the system may take to end a process that was killed: it may have much memory to give back."""

_REMEMBERED = 64
"""Of how many ended workers a new Conductor tells the others, who may not have heard of the last few."""


@dataclass(slots=True, eq=False)
class _Charge:
    """A party in the supervisor's care.

    `party` is None while it waits for its next start. `due` is when that is, or, once started, when it is given up.
    `verdict` is why the supervisor itself ended it.
    """

    name: str
    launcher: Launcher
    backoff: Backoff = field(default_factory=Backoff)
    party: Party | None = None
    address: Address | None = None
    starts: int = 0
    ready_since: float | None = None
    due: float | None = None
    verdict: str = ""

    @property
    def title(self) -> str:
        """What it is called in messages."""
        return "the Conductor" if self.name == CONDUCTOR else f"worker {self.name!r}"


class Supervisor:
    """Does everything on a thread of its own, one event after the other; its methods may be called from any.

    `conductor_lost` is told, on that thread, whenever the Conductor of a server that had started has ended, or does not
    answer any more. A party that is not ready `start_timeout` seconds after its start is given up. With `trace` workers
    tell the frontends of every batch.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        plan: Plan,
        frontends: tuple[Address, ...],
        conductor_lost: Callable[[str], None],
        *,
        trace: bool = False,
        start_timeout: float = 600.0,
    ) -> None:
        self._plan = plan
        self._trace = trace
        self._start_timeout = start_timeout
        self._frontends = frontends
        self._conductor_lost = conductor_lost
        self._mailbox = Mailbox(context, "inproc://supervisor")
        self._conductor = _Charge(CONDUCTOR, plan.conductor)
        self._workers = {name: _Charge(name, launcher) for name, launcher in plan.workers.items()}
        self._home: Future[Address] = Future()
        self._started: Future[None] = Future()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._closing = False
        self._lost: deque[Address] = deque(maxlen=_REMEMBERED)
        self._heard = 0.0  # when the Conductor was last heard of, in time.monotonic() seconds
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> Address:
        """Start the Conductor and then the workers; the Conductor's address, which stays the same.

        Raises `Unavailable` when the Conductor cannot be started. Called once.
        """
        self._thread.start()
        return self._home.result()

    def wait_started(self) -> None:
        """Return when everything is ready; raise `Unavailable` with the reason when something cannot be started."""
        self._started.result()

    def observe(self, state: ServerState) -> None:
        """What the Conductor has said."""
        self._events.put(lambda: self._observe(state))

    def give_up(self, reason: str) -> None:
        """Nothing will come of a start that is going on."""
        self._events.put(lambda: self._give_up(reason))

    def addresses(self) -> dict[str, Address | None]:
        """Where the Conductor and the workers are, by name; None for one that does not answer yet, or not any more."""
        return {each.name: None if each.ready_since is None else each.address for each in self._charges}

    def restarts(self) -> dict[str, int]:
        """How often each party was started again."""
        return {charge.name: max(charge.starts - 1, 0) for charge in self._charges}

    def close(self) -> bool:
        """End every party; whether all have ended (a thread may refuse to)."""
        self._events.put(self._leave)
        if self._thread.ident is not None:
            self._thread.join()
        self._mailbox.close()
        return not self._live()

    @property
    def _charges(self) -> list[_Charge]:
        return [self._conductor, *self._workers.values()]

    @property
    def _has_started(self) -> bool:
        return self._started.done() and self._started.exception() is None

    def _run(self) -> None:
        try:
            self._start(self._conductor)
            while not self._closing:
                self._handle_event(self._next_look())
                self._look_at_the_clock()
        except Exception as error:  # isolation boundary: launchers may be a plugin's; nobody must wait for this thread
            _log.critical("the supervisor failed", exc_info=error)
            self._give_up(f"the supervisor failed: {type(error).__name__}: {error}")
            if self._has_started:
                self._conductor_lost("was ended, since the supervisor has failed")
        finally:
            self._give_up("it was stopped before it was ready")
            self._end_all()

    def _handle_event(self, until: float | None) -> None:
        """Wait for an event, or until a point in time."""
        try:
            event = self._events.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except queue.Empty:
            return
        event()

    def _next_look(self) -> float | None:
        """When something is due that no event tells of."""
        dues = [each.due for each in self._charges if each.due is not None]
        if self._expects_beats:
            dues.append(self._heard + SILENCE_S)
        return min(dues, default=None)

    @property
    def _expects_beats(self) -> bool:
        """Whether the Conductor should let itself be heard of: not while it starts, nor once it was given up."""
        conductor = self._conductor
        return self._has_started and conductor.ready_since is not None and not conductor.verdict

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if self._expects_beats and now >= self._heard + SILENCE_S:
            silent = f"was {SILENT} for {SILENCE_S:g} s"
            self._end(self._conductor, f"{silent}, and was ended")
            self._conductor_lost(silent)
        for charge in self._charges:
            if charge.due is not None and charge.due <= now:
                charge.due = None
                if charge.party is None:
                    self._start(charge)
                else:
                    self._end(charge, f"was not ready within {self._start_timeout:g} s")

    def _start(self, charge: _Charge) -> None:
        charge.starts += 1
        charge.ready_since, charge.verdict = None, ""
        charge.due = time.monotonic() + self._start_timeout
        start = charge.starts

        def bound(address: Address) -> None:
            self._events.put(lambda: self._bound(charge, start, address))

        def ended(reason: str) -> None:
            self._events.put(lambda: self._ended(charge, start, reason))

        try:
            charge.party = charge.launcher.start(self._job(charge), Watch(bound, ended))
        except OSError as error:
            ended(f"cannot be started: {error}")

    def _job(self, charge: _Charge) -> PartyJob:
        frontends = self._frontends
        if charge is not self._conductor:
            home = self._home.result()
            return WorkerJob(name=charge.name, conductor=home, frontends=frontends, trace=self._trace)
        far = self._home.result().far if self._home.done() else self._plan.far
        known = {worker.name: worker.address for worker in self._workers.values() if worker.address is not None}
        lost = tuple(self._lost)
        return ConductorJob(frontends=frontends, workers=known, lost=lost, far=far, incarnation=charge.starts - 1)

    def _bound(self, charge: _Charge, start: int, address: Address) -> None:
        if charge.starts != start:
            return
        charge.address = address
        if charge is self._conductor:
            charge.ready_since, charge.due = time.monotonic(), None
            self._heard = time.monotonic()
            if not self._home.done():
                self._home.set_result(address)
                for worker in self._workers.values():
                    self._start(worker)

    def _observe(self, state: ServerState) -> None:
        self._heard = time.monotonic()
        for name, worker in state.workers.items():
            charge = self._workers[name]
            if charge.party is None:
                continue
            if worker.state == READY and charge.ready_since is None:
                charge.ready_since, charge.due = time.monotonic(), None
            elif worker.state.startswith(SILENT) and charge.ready_since is not None:
                self._end(charge, f"was {worker.state}, and was ended")
        ready = all(worker.ready_since is not None for worker in self._workers.values())
        if state.ready and ready and not self._started.done():
            self._started.set_result(None)

    def _ended(self, charge: _Charge, start: int, reason: str) -> None:
        if charge.starts != start:
            return
        reason = charge.verdict or reason
        healthy = 0.0 if charge.ready_since is None else time.monotonic() - charge.ready_since
        if charge is not self._conductor and charge.address is not None:
            self._lost.append(charge.address)
        charge.party, charge.address, charge.due = None, None, None
        self._give_up(f"{charge.title} {reason}")
        if self._closing or not self._has_started:
            return
        delay = charge.backoff.delay(healthy)
        charge.due = time.monotonic() + delay
        _log.error("%s %s; it is started again in %g s", charge.title, reason, delay)
        home = self._home.result()
        if charge is self._conductor:
            self._mailbox.disconnect(home)
            self._conductor_lost(reason)
        else:
            self._mailbox.send(home, WorkerFailed(charge.name, reason, restarting=True))

    def _give_up(self, reason: str) -> None:
        """What has not started by now will not."""
        for waited in (self._home, self._started):
            if not waited.done():
                waited.set_exception(Unavailable(f"the server cannot start: {reason}"))

    def _end(self, charge: _Charge, verdict: str) -> None:
        assert charge.party is not None
        if not charge.verdict:
            charge.verdict = verdict
            charge.party.kill()
        self._give_up(f"{charge.title} {verdict}")

    def _leave(self) -> None:
        self._closing = True

    def _live(self) -> list[Party]:
        return [charge.party for charge in self._charges if charge.party is not None]

    def _end_all(self) -> None:
        """Ask every party to leave, and kill those that do not."""
        self._closing = True
        for party in self._live():
            party.stop()
        self._wait_for_ends(max(charge.launcher.patience_s for charge in self._charges))
        for party in self._live():
            party.kill()
        self._wait_for_ends(_KILL_S)

    def _wait_for_ends(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._live() and time.monotonic() < until:
            self._handle_event(until)
