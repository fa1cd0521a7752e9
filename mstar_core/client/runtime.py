"""The in-process runtime: Conductor, worker and frontend as threads that talk over `inproc://`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import zmq

from mstar_core.client.frontend import Frontend
from mstar_core.conductor.conductor import Conductor
from mstar_core.conductor.models import ServedModel
from mstar_core.errors import Unavailable
from mstar_core.spec.placement import Placement
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Stop, WorkerFailed
from mstar_core.wire.store import LocalStore
from mstar_core.worker.launch import ModelSource, run_worker

if TYPE_CHECKING:
    from mstar_core.worker.worker import Worker

_log = logging.getLogger(__name__)

_CONDUCTOR = "inproc://conductor"
_FRONTEND = "inproc://frontend"


class Runtime:
    """Starts the parties' threads, and stops them. `state` follows what the Conductor announces."""

    def __init__(self, sources: Sequence[ModelSource], placement: Placement) -> None:
        self.ready = False
        self.models: Mapping[str, str] = {source.spec.card.name: "loading" for source in sources}
        self.worker: Worker | None = None
        self._changed = threading.Condition()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.tensors = LocalStore()
        conductor_mailbox = Mailbox(self._context, _CONDUCTOR)
        self._conductor = conductor_mailbox.waker()
        self.frontend = Frontend(Mailbox(self._context, _FRONTEND), self._conductor, self.tensors, self._on_state)
        served = {
            source.spec.card.name: ServedModel(
                source.spec,
                placement.model(source.spec.card.name).running,
                placement.model(source.spec.card.name).waiting,
            )
            for source in sources
        }
        conductor = Conductor(conductor_mailbox, served, (_FRONTEND,))
        name = next(iter(placement.workers))
        worker_mailbox = Mailbox(self._context, f"inproc://worker-{name}")
        self._threads = [
            self._thread("conductor", conductor.run, self._conductor_failed),
            self._thread("frontend", self.frontend.run, self._conductor_failed),
            self._thread(
                f"worker-{name}",
                lambda: run_worker(name, worker_mailbox, _CONDUCTOR, sources, placement, self.tensors, self._on_worker),
                lambda error: self._conductor.send(WorkerFailed(name, f"{type(error).__name__}: {error}")),
            ),
        ]

    def wait_ready(self, on_change: Callable[[Mapping[str, str]], None] | None = None) -> None:
        """Return when every model is ready; raise `Unavailable` with the reason when one cannot be."""
        with self._changed:
            self._changed.wait_for(lambda: self.ready or any(state != "loading" for state in self.models.values()))
            if not self.ready:
                reasons = "; ".join(f"{name}: {state}" for name, state in self.models.items() if state != "ready")
                raise Unavailable(f"cannot serve {reasons}")

    def close(self) -> None:
        """Stop every thread. Requests still open end as unavailable."""
        self._conductor.send(Stop())
        self.frontend.close()
        for thread in self._threads:
            thread.join()
        self._conductor.close()
        self._context.term()

    def _thread(self, name: str, run: Callable[[], None], failed: Callable[[Exception], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                run()
            except Exception as error:  # isolation boundary: a party's thread; the others must hear of its end
                _log.critical("thread %s failed", name, exc_info=error)
                failed(error)

        thread = threading.Thread(target=guarded, name=f"mstar-{name}", daemon=True)
        thread.start()
        return thread

    def _on_state(self, ready: bool, models: Mapping[str, str]) -> None:
        with self._changed:
            self.ready, self.models = ready, models
            self._changed.notify_all()

    def _on_worker(self, worker: Worker) -> None:
        self.worker = worker

    def _conductor_failed(self, error: Exception) -> None:
        reason = f"the server has failed: {type(error).__name__}: {error}"
        self._on_state(False, dict.fromkeys(self.models, reason))
        self.frontend.fail_all(Unavailable(reason))
