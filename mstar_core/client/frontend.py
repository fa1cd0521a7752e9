"""The frontend's end of the wire: submits requests and delivers their outputs and ends to tickets."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mstar_core.client.ticket import Ticket
from mstar_core.errors import Conflict, RequestError, Unavailable
from mstar_core.spec.content import Prepared, Renderer
from mstar_core.wire.mailbox import Mailbox, Waker
from mstar_core.wire.messages import Cancel, Emitted, Ended, Output, ServerState, Stop, Submit, TensorRef
from mstar_core.wire.store import LocalStore


@dataclass(slots=True, eq=False)
class _Open:
    """A request whose end was not delivered yet."""

    number: int
    ticket: Ticket
    inputs: Sequence[TensorRef]
    received: int = 0
    ended: Ended | None = None


@dataclass(slots=True)
class Counts:
    """Requests by outcome, for the metrics route."""

    submitted: int = 0
    ended: dict[str, int] = field(default_factory=dict)


class Frontend:
    """Runs on a thread of its own (`run`); `submit` and `close` may be called from any."""

    def __init__(
        self,
        mailbox: Mailbox,
        conductor: Waker,
        tensors: LocalStore,
        on_state: Callable[[bool, Mapping[str, str]], None],
    ) -> None:
        self.counts = Counts()
        self._mailbox = mailbox
        self._conductor = conductor
        self._tensors = tensors
        self._on_state = on_state
        self._self = mailbox.waker()
        self._numbers = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._ids: set[str] = set()
        self._lock = threading.Lock()
        self._dead: RequestError | None = None

    @property
    def open_requests(self) -> int:
        """Requests whose end was not delivered yet."""
        return len(self._open)

    def submit(self, request_id: str, model: str, prepared: Prepared, seed: int, renderer: Renderer) -> Ticket:
        """Send a request on its way; raises `Conflict` when its id is in use."""
        number = next(self._numbers)
        ticket = Ticket(request_id, renderer, lambda: self._cancel(number))
        with self._lock:
            if self._dead is not None:
                raise self._dead
            if request_id in self._ids:
                raise Conflict(f"a request with the id {request_id!r} is already being served", param="request_id")
            publish = self._tensors.publish
            inputs = {name: [publish(array) for array in arrays] for name, arrays in prepared.inputs.items()}
            self._ids.add(request_id)
            self._open[number] = _Open(number, ticket, [ref for refs in inputs.values() for ref in refs])
            self.counts.submitted += 1
        params, outputs = dict(prepared.params), sorted(prepared.outputs)
        self._conductor.send(Submit(request_id, model, params, seed, inputs, outputs, self._mailbox.endpoint, number))
        return ticket

    def run(self) -> None:
        """Deliver until `close` is called."""
        try:
            while True:
                for message in self._mailbox.receive(None):
                    match message:
                        case Emitted():
                            self._emitted(message.outputs)
                        case Ended():
                            self._ended(message)
                        case ServerState():
                            self._on_state(message.ready, message.models)
                        case Stop():
                            return
                        case _:
                            raise AssertionError(f"a frontend gets no {type(message).__name__}")
        finally:
            self.fail_all(Unavailable("the server has stopped"))
            self._mailbox.close()

    def fail_all(self, error: RequestError) -> None:
        """Nobody will answer any more: end every open request with `error`, and refuse new ones."""
        with self._lock:
            self._dead = error
            lost = list(self._open.values())
            self._open.clear()
            self._ids.clear()
        for request in lost:
            self._finish(request, error)

    def close(self) -> None:
        """Leave `run`."""
        self._self.send(Stop())
        self._self.close()

    def _cancel(self, number: int) -> None:
        request = self._open.get(number)
        if request is not None:
            self._conductor.send(Cancel(request.ticket.id, self._mailbox.endpoint, number))

    def _emitted(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            request = self._open.get(output.ticket)
            array = self._tensors.take(output.tensor)
            if request is not None:
                request.received += 1
                request.ticket.deliver((output.modality, array))
                self._maybe_complete(request)

    def _ended(self, ended: Ended) -> None:
        request = self._open.get(ended.ticket)
        if request is not None:
            request.ended = ended
            self._maybe_complete(request)

    def _maybe_complete(self, request: _Open) -> None:
        """Deliver the end, once everything that was emitted before it has arrived (a failure does not wait)."""
        ended = request.ended
        if ended is None or (ended.error is None and request.received < ended.emitted):
            return
        with self._lock:
            if self._open.pop(request.number, None) is None:
                return
            self._ids.discard(request.ticket.id)
        self._finish(request, ended.error.rebuild() if ended.error else ended)

    def _finish(self, request: _Open, end: Ended | RequestError) -> None:
        for ref in request.inputs:
            self._tensors.drop(ref)
        reason = end.code if isinstance(end, RequestError) else end.reason
        self.counts.ended[reason] = self.counts.ended.get(reason, 0) + 1
        request.ticket.deliver(end)
