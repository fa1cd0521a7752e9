"""The runtime of one server: the frontend and its thread, and the supervisor of everything else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import zmq

from mstar_core.client.frontend import Frontend
from mstar_core.client.samples import samples_of
from mstar_core.client.trace_file import TraceFile
from mstar_core.errors import Unavailable
from mstar_core.launch.plan import Context, Plan, any_port
from mstar_core.launch.supervisor import Supervisor
from mstar_core.wire.address import Keys
from mstar_core.wire.exchange import Exchange
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Sample, ServerState, WorkerState

_log = logging.getLogger(__name__)

_RETRY_S = 1.0
"""When to try again while another Conductor is being started, which takes about as long."""

_METRICS_S = 2.0
"""How long parties may take to say what they count: a worker's loop answers between two batches."""


class Runtime:
    """Starts everything that a plan names and returns when it is ready; `close` ends it.

    Raises `Unavailable` with the reason when something cannot be started. Whatever is raised meanwhile, Ctrl-C
    included, everything is ended before. `state` is what is known of models and workers now. `keys` is the key file, if
    other hosts take part; requests and batches are written to the file `trace`.
    """

    def __init__(
        self,
        make_plan: Callable[[Context], Plan],
        models: Sequence[str],
        *,
        keys: Path | None = None,
        trace: Path | None = None,
        start_timeout: float = 600.0,
    ) -> None:
        self._context: Context = zmq.Context()
        self._all_ended = True
        with ExitStack() as stack:
            stack.callback(self._end_context)
            plan = make_plan(self._context)
            for launcher in dict.fromkeys((plan.conductor, *plan.workers.values())):
                stack.callback(launcher.close)
            self.state = _unknown(models, plan.workers, "loading", "loading")
            trace_file = stack.enter_context(TraceFile(trace)) if trace else None
            mailbox = stack.enter_context(
                Mailbox(
                    self._context,
                    plan.conductor.near("frontend"),
                    far=any_port(plan.far),
                    keys=Keys.load(keys) if keys else None,
                )
            )
            own = [make(mailbox.address) for make in plan.transports]
            exchange = Exchange(mailbox.address, local=plan.conductor.local, transports=own)
            stack.callback(exchange.close)
            self._supervisor = Supervisor(
                self._context,
                plan,
                (mailbox.address,),
                self._conductor_lost,
                trace=trace is not None,
                start_timeout=start_timeout,
            )
            stack.callback(self._end_parties)
            self.frontend = Frontend(mailbox, self._supervisor.start(), exchange, self._heard, trace_file)
            self._thread = threading.Thread(target=self._run_frontend, name="frontend", daemon=True)
            stack.callback(self._end_frontend)
            self._thread.start()
            self._supervisor.wait_started()
            self._closing = stack.pop_all()

    def metrics(self) -> list[Sample]:
        """What all parties count, and how often each was started again. Waits for their answers."""
        restarts = [
            Sample("mstar_restarts", "counter", "How often a party was started again.", {"party": party}, count)
            for party, count in self._supervisor.restarts().items()
        ]
        return samples_of(self.frontend, self._supervisor.addresses(), _METRICS_S) + restarts

    def close(self) -> None:
        """End everything, in bounded time. Requests that are still open end as unavailable."""
        self._closing.close()

    def _run_frontend(self) -> None:
        try:
            self.frontend.run()
        except Exception as error:  # isolation boundary: the frontend's thread; its tickets have ended by now
            _log.critical("the frontend failed", exc_info=error)
            reason = f"the frontend failed: {type(error).__name__}: {error}"
            self._supervisor.give_up(reason)
            self._conductor_lost(f"cannot be heard: {reason}")

    def _heard(self, state: ServerState) -> None:
        """The Conductor has said something of the server; on the frontend's thread."""
        self.state = state
        self._supervisor.observe(state)

    def _conductor_lost(self, reason: str) -> None:
        """The Conductor has ended, and all requests with it; what it knew is not known any more."""
        reason = f"the Conductor {reason}"
        self.state = _unknown(self.state.models, self.state.workers, reason, "unknown, since the Conductor has ended")
        self.frontend.fail_all(Unavailable(reason, retry_after=_RETRY_S))

    def _end_frontend(self) -> None:
        """Open requests end at once; what the parties say while they end is still heard."""
        self.frontend.fail_all(Unavailable("the server has stopped"))
        self._end_parties()
        self.frontend.close()
        if self._thread.ident is not None:
            self._thread.join()

    def _end_parties(self) -> None:
        self._all_ended = self._supervisor.close()

    def _end_context(self) -> None:
        """Close what was left open; the sockets of a thread that does not end are its own."""
        if self._all_ended:
            self._context.destroy(linger=0)


def _unknown(models: Iterable[str], workers: Iterable[str], model: str, worker: str) -> ServerState:
    """The state of a server whose Conductor says nothing."""
    return ServerState(False, dict.fromkeys(models, model), dict.fromkeys(workers, WorkerState(worker)))
