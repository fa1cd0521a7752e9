"""The frontend's end of the wire: submits requests and delivers their outputs and ends to tickets."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from mstar_core.client.open_request import OpenRequest, Reader
from mstar_core.client.orders import Orders
from mstar_core.client.samples import FRONTEND, Counts, from_party
from mstar_core.client.surveys import Questions, Survey
from mstar_core.client.ticket import Made, Ticket
from mstar_core.client.trace_file import TraceFile
from mstar_core.conductor.models import READY
from mstar_core.errors import Conflict, InvalidRequest, RequestError, Unavailable
from mstar_core.spec.content import PROGRESS, Prepared, Renderer
from mstar_core.wire.exchange import Exchange
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import (
    Address,
    AskMetrics,
    Cancel,
    Emitted,
    Ended,
    ErrorInfo,
    Fetch,
    Fetched,
    Message,
    Metrics,
    Output,
    PeerLost,
    Read,
    Released,
    Sample,
    ServerState,
    Spans,
    Submit,
    TensorRef,
)
from mstar_core.wire.transport import numpy_dtype


class Frontend:
    """Runs on a thread of its own (`run`), which alone uses the mailbox; who made mailbox and exchange closes them when
    `run` has returned. What other threads want is done there, in order; none of them waits for anyone.

    `on_state` is called by that thread with what the Conductor says of the server. Requests and batches are written to
    `trace`, if there is one.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        conductor: Address,
        exchange: Exchange,
        on_state: Callable[[ServerState], None],
        trace: TraceFile | None = None,
    ) -> None:
        self.address = mailbox.address
        self._mailbox = mailbox
        self._conductor = conductor
        self._exchange = exchange
        self._on_state = on_state
        self._trace = trace
        self._orders = Orders(mailbox.waker())
        self._counts = Counts()
        self._numbers = itertools.count(1)
        self._questions = Questions()
        self._held: dict[int, list[TensorRef]] = {}
        self._lock = threading.Lock()
        self._open: dict[int, OpenRequest] = {}
        self._ids: set[str] = set()
        self._dead: RequestError | None = None
        self._leaving = False

    @property
    def open_requests(self) -> int:
        """Requests whose end was not delivered yet."""
        return len(self._open)

    def submit(
        self,
        request_id: str,
        model: str,
        prepared: Prepared,
        seed: int,
        renderer: Renderer,
        timeout: float | None = None,
    ) -> Ticket:
        """Send a request on its way; from any thread.

        After `timeout` seconds (None: the model's own deadline) it fails. Raises `InvalidRequest` for an impossible
        one, `Conflict` when its id is in use, `RequestError` for inputs that are no tensors, and what `fail_all` was
        given while nobody would answer.
        """
        _check(model, prepared, timeout)
        number = next(self._numbers)
        request = OpenRequest(number, model, Ticket(request_id, renderer, partial(self._cancel, number)))
        with self._lock:
            if self._dead is not None:
                raise ErrorInfo.of(self._dead).rebuild()
            if request_id in self._ids:
                raise Conflict(f"a request with the id {request_id!r} is already being served", param="request_id")
            self._ids.add(request_id)
            self._open[number] = request
            self._orders.put(partial(self._submit, request, prepared, seed, timeout))
        self._counts.submitted()
        return request.ticket

    def run(self) -> None:
        """Deliver until `close` is called."""
        try:
            while not self._leaving:
                messages = self._mailbox.receive(None)
                self._orders.do()
                for message in messages:
                    self._handle(message)
        finally:
            self._leave()
            self.fail_all(Unavailable("the server has stopped"))

    def fail_all(self, error: RequestError) -> None:
        """The Conductor is gone: end every open request with `error`, and refuse new ones until there is another.

        From any thread.
        """
        with self._lock:
            self._dead = error
            lost = list(self._open.values())
            self._open.clear()
            self._ids.clear()
            self._orders.put(self._forget_conductor)
        for request in lost:
            self._finish(request, ErrorInfo.of(error).rebuild())

    def ask_metrics(self, addresses: Mapping[str, Address], timeout: float) -> dict[str, list[Sample]]:
        """What the parties at `addresses` count, by name; only of those that answer within `timeout` seconds.

        From any thread but the frontend's own.
        """
        survey = Survey(addresses)
        asked = self._orders.put(partial(self._ask, addresses, survey))
        return survey.result(timeout if asked else 0)

    def samples(self) -> Iterator[Sample]:
        """What the frontend counts; from any thread."""
        waiting = sum(request.ticket.waiting for request in list(self._open.values()))
        yield from self._counts.samples()
        yield Sample("mstar_requests_open", "gauge", "Requests that have not ended.", {}, self.open_requests)
        yield Sample("mstar_outputs_waiting", "gauge", "Outputs that were not read yet.", {}, waiting)
        yield from (from_party(FRONTEND, sample) for sample in self._exchange.samples())

    def close(self) -> None:
        """Leave `run`; from any thread."""

        def leave() -> None:
            self._leaving = True

        self._orders.put(leave)

    def _handle(self, message: Message) -> None:
        match message:
            case Emitted():
                for output in message.outputs:
                    self._emitted(message.worker, output)
            case Ended():
                self._ended(message)
            case Released():
                self._drop(message.ticket)
            case Fetch():
                self._fetch(message)
            case Metrics():
                self._questions.answered(message.number, message.samples)
            case Spans():
                if self._trace is not None:
                    self._trace.write_spans(message.spans)
            case ServerState():
                self._heard_of_conductor(message)
            case PeerLost():
                self._forget_worker(message.address)
            case _:
                raise AssertionError(f"a frontend gets no {type(message).__name__}")

    def _submit(self, request: OpenRequest, prepared: Prepared, seed: int, timeout: float | None) -> None:
        if request.number not in self._open:
            return  # the Conductor was lost meanwhile
        if self._trace is not None:
            self._trace.begin_request(request.number, request.model, request.ticket.id)
        inputs = {name: [self._exchange.hold(array) for array in arrays] for name, arrays in prepared.inputs.items()}
        self._held[request.number] = [ref for refs in inputs.values() for ref in refs]
        self._tell_conductor(
            Submit(
                request.ticket.id,
                request.model,
                dict(prepared.params),
                seed,
                inputs,
                sorted(prepared.outputs),
                self.address,
                request.number,
                timeout,
            )
        )

    def _cancel(self, number: int) -> None:
        """Called by the ticket, in any thread."""
        request = self._open.get(number)
        if request is not None:
            self._orders.put(partial(self._tell_conductor, Cancel(request.ticket.id, self.address, number)))

    def _tell_conductor(self, message: Message) -> None:
        self._mailbox.send(self._conductor, message)

    def _emitted(self, worker: Address, output: Output) -> None:
        request = self._open.get(output.ticket)
        if request is None:
            self._exchange.release(output.tensor)
            return
        try:
            array = self._exchange.take(output.tensor)
        except KeyError:
            self._cancel(request.number)
            self._end(request, _lost_output())
            return
        if not request.begun and output.modality != PROGRESS:
            request.begun = True
            self._counts.first_output(request.model, request.age)
        request.received += 1
        reader = request.readers.get(worker)
        if reader is None:
            reader = request.readers[worker] = Reader(partial(self._read, request.number, worker))
        request.ticket.deliver(Made(output.modality, array, reader.took))
        self._maybe_complete(request)

    def _read(self, number: int, worker: Address, outputs: int) -> None:
        """Called by whoever reads the ticket, in any thread."""
        self._orders.put(partial(self._tell_worker, number, worker, outputs))

    def _tell_worker(self, number: int, worker: Address, outputs: int) -> None:
        """A worker that is gone has no open request: nothing is sent there, which would connect to it again."""
        if number in self._open:
            self._mailbox.send(worker, Read(self.address, number, outputs))

    def _ended(self, ended: Ended) -> None:
        request = self._open.get(ended.ticket)
        if request is not None:
            request.ended = ended
            self._maybe_complete(request)

    def _maybe_complete(self, request: OpenRequest) -> None:
        ended = request.ended
        if ended is not None and request.complete:
            request.ticket.tokens = ended.tokens
            self._end(request, ended.error.rebuild() if ended.error else ended)

    def _end(self, request: OpenRequest, end: Ended | RequestError) -> None:
        with self._lock:
            if self._open.pop(request.number, None) is None:
                return
            self._ids.discard(request.ticket.id)
        self._finish(request, end)

    def _finish(self, request: OpenRequest, end: Ended | RequestError) -> None:
        reason = end.code if isinstance(end, RequestError) else end.reason
        self._counts.ended(request.model, reason, request.age)
        if self._trace is not None:
            self._trace.end_request(request.number, request.model, reason)
        request.ticket.deliver(end)

    def _drop(self, number: int) -> None:
        """Free the inputs of a ticket."""
        for ref in self._held.pop(number, ()):
            self._exchange.drop(ref)

    def _fetch(self, fetch: Fetch) -> None:
        """Send inputs to a worker of another host, unless they were dropped: then the request has ended there too."""
        try:
            inputs = {name: [self._exchange.inline(ref) for ref in refs] for name, refs in fetch.inputs.items()}
        except KeyError:
            return
        self._mailbox.send(fetch.receiver, Fetched(fetch.key, inputs))

    def _ask(self, addresses: Mapping[str, Address], survey: Survey) -> None:
        for party, address in addresses.items():
            number = self._questions.ask(party, address, survey)
            if number is not None:
                self._mailbox.send(address, AskMetrics(number, self.address))

    def _heard_of_conductor(self, state: ServerState) -> None:
        if READY in state.models.values():
            with self._lock:
                self._dead = None
        self._on_state(state)

    def _forget_worker(self, worker: Address) -> None:
        """A worker is gone. Its failed requests have ended; complete ones wait for outputs that may never come."""
        self._mailbox.disconnect(worker)
        self._questions.forget(worker)
        self._exchange.forget(worker)
        for request in [each for each in self._open.values() if each.ended]:
            self._end(request, _lost_output())

    def _forget_conductor(self) -> None:
        """Drop what the lost Conductor was not told yet, and what it would have released."""
        self._mailbox.disconnect(self._conductor)
        self._questions.forget(self._conductor)
        for number in list(self._held):
            self._drop(number)

    def _leave(self) -> None:
        self._orders.close()
        for number in list(self._held):
            self._drop(number)


def _lost_output() -> Unavailable:
    return Unavailable("an output was lost: the worker that made it has ended", retry_after=1.0)


def _check(model: str, prepared: Prepared, timeout: float | None) -> None:
    """Refuse what could not be sent."""
    if timeout is not None and not 0 < timeout < math.inf:
        problem = f"'timeout' must be a number of seconds greater than 0, got {timeout}"
        raise InvalidRequest(problem, param="timeout")
    for name, arrays in prepared.inputs.items():
        for array in arrays:
            try:
                numpy_dtype(str(array.dtype))
            except TypeError as error:
                raise RequestError(
                    f"the processor of {model!r} gave an input {name!r} that is none: {error}"
                ) from error
