"""The Conductor's loop: admits requests, asks state machines what follows, and ends each request exactly once.

It hears of walks, not of tokens, and it touches no tensor. Everything runs on its own thread.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from mstar_core.conductor.deadlines import Deadlines
from mstar_core.conductor.models import READY, ServedModel
from mstar_core.conductor.requests import Request, view_of
from mstar_core.conductor.workers import SILENCE_S, SILENT, Workers
from mstar_core.errors import Cancelled, Conflict, DeadlineExceeded, NodeFailed, NotFound, RequestError, Unavailable
from mstar_core.spec.machine import Transition, WalkEnded
from mstar_core.spec.transitions import check_transition
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import (
    BEAT_S,
    Address,
    AskMetrics,
    Beat,
    Cancel,
    Close,
    Closed,
    Ended,
    ErrorInfo,
    FinishPartition,
    Message,
    Metrics,
    Open,
    PeerLost,
    Register,
    Released,
    Sample,
    ServerState,
    StartWalk,
    Stop,
    Submit,
    WalkDone,
    WalkFailed,
    WorkerFailed,
    WorkerReady,
)

_log = logging.getLogger(__name__)

RETRY_S = 1.0
"""When a client should try again that was refused because a worker is missing."""


class Conductor:
    """Owns the request table, the state machines and admission.

    `frontends` are told when the server's state changes. `workers` are live already: they served a Conductor before
    this one, and are told to forget what they hold. Those at `lost` have ended, which everybody is told. Keys of
    requests start at `first_key`, beyond those of earlier Conductors.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        models: Mapping[str, ServedModel],
        frontends: tuple[Address, ...],
        *,
        workers: Mapping[str, Address] | None = None,
        lost: tuple[Address, ...] = (),
        first_key: int = 1,
    ) -> None:
        self._mailbox = mailbox
        self._models = models
        self._frontends = frontends
        self._predecessors = dict(workers or {})
        self._lost = lost
        self._workers = Workers.of(name for model in models.values() for name in model.layout.workers())
        self._deadlines = Deadlines()
        self._by_id: dict[str, Request] = {}
        self._by_key: dict[int, Request] = {}
        self._first_key = first_key
        self._keys = itertools.count(first_key)
        self._ends: Counter[tuple[str, str]] = Counter()
        self._next_announcement = time.monotonic() + BEAT_S
        self._stopping = False

    def run(self) -> None:
        """Serve until `Stop` arrives, then stop the workers. One that fails leaves them to its successor."""
        try:
            self._tell_of_lost(self._frontends)
            for address in self._predecessors.values():
                self._mailbox.send(address, Register(self._mailbox.address, self._first_key))
            while not self._stopping:
                for message in self._mailbox.receive(self._patience()):
                    self._handle(message)
                self._look_at_the_clock()
            for _, address in self._workers.up():
                self._mailbox.send(address, Stop())
        finally:
            self._mailbox.close()

    def _handle(self, message: Message) -> None:
        match message:
            case WalkDone() | WalkFailed() | Closed() if message.key not in self._by_key:
                pass  # the last words of a worker whose failure has ended its requests
            case WalkDone():
                self._walk_done(message)
            case Submit():
                self._submit(message)
            case Closed():
                self._closed(self._by_key[message.key], message.worker)
            case WalkFailed():
                self._end(self._by_key[message.key], "failed", message.error.rebuild())
            case Cancel():
                self._cancel(message)
            case Beat():
                self._heard(message.worker)
            case WorkerReady():
                self._worker_ready(message)
            case WorkerFailed():
                self._worker_failed(message)
            case AskMetrics():
                self._mailbox.send(message.reply_to, Metrics(message.number, "conductor", list(self._samples())))
            case Stop():
                self._stopping = True
            case _:
                raise AssertionError(f"the Conductor gets no {type(message).__name__}")

    def _submit(self, submit: Submit) -> None:
        try:
            request = self._checked(submit)
        except RequestError as error:
            self._ends[submit.model if submit.model in self._models else "", error.code] += 1
            self._mailbox.send(submit.frontend, Ended(submit.ticket, "failed", 0, {}, ErrorInfo.of(error)))
            self._mailbox.send(submit.frontend, Released(submit.ticket))
            return
        self._by_id[submit.request] = request
        self._deadlines.add(request)
        self._models[submit.model].queue.append(request)
        self._admit(self._models[submit.model])

    def _checked(self, submit: Submit) -> Request:
        """The request, when it can be served at all; raises the error that refuses it."""
        if submit.request in self._by_id:
            raise Conflict(f"a request with the id {submit.request!r} is already being served")
        model = self._models.get(submit.model)
        if model is None:
            raise NotFound(f"no model {submit.model!r} is served here", param="model")
        if model.state != READY:
            raise Unavailable(f"model {submit.model!r} is not ready: {model.state}", retry_after=RETRY_S)
        view = view_of(submit)
        try:
            demand = model.spec.machine.demand(view)
        except Exception as error:  # isolation boundary: a plugin's state machine
            raise _machine_error(submit, error) from error
        seconds = model.limits.deadline if submit.timeout is None else submit.timeout
        request = Request(submit, demand, view, None if seconds is None else time.monotonic() + seconds)
        model.refuse_impossible(request)
        model.refuse_overflow()
        return request

    def _cancel(self, cancel: Cancel) -> None:
        """End a request, unless it has ended: its id may be another's by now."""
        request = self._by_id.get(cancel.request)
        if request is not None and (request.submit.frontend, request.submit.ticket) == (cancel.frontend, cancel.ticket):
            self._end(request, "cancelled", Cancelled("the request was cancelled"))

    def _admit(self, model: ServedModel) -> None:
        """Start waiting requests, first come first served, while there is room."""
        while model.queue and model.has_room and model.state == READY:
            request = model.queue.popleft()
            request.admitted = True
            model.admitted += 1
            self._start(request, model)

    def _start(self, request: Request, model: ServedModel) -> None:
        submit = request.submit
        request.key = next(self._keys)
        request.route = self._workers.route(model.layout)
        self._by_key[request.key] = request
        addresses = [address for name in request.route if (address := self._workers.address(name)) is not None]
        assert len(addresses) == len(request.route), "a model that is ready has a worker for every group"
        opened = Open(
            request.key,
            submit.request,
            submit.model,
            submit.params,
            submit.seed,
            submit.inputs,
            submit.outputs,
            submit.frontend,
            submit.ticket,
            addresses,
        )
        for name, address in dict(zip(request.route, addresses, strict=True)).items():
            request.open_on.add(name)
            self._workers.by_name[name].load += 1
            self._mailbox.send(address, opened)
        self._follow(request, model, lambda: model.spec.machine.start(request.view))

    def _walk_done(self, done: WalkDone) -> None:
        request = self._by_key[done.key]
        if request.ended:
            return
        model = self._models[request.submit.model]
        request.walks.discard(done.walk)
        request.emitted += done.emitted
        request.tokens[done.walk] += done.tokens
        event = WalkEnded(walk=done.walk, how=done.how, flags=done.flags)
        self._follow(request, model, lambda: model.spec.machine.advance(request.state, event))

    def _follow(self, request: Request, model: ServedModel, ask: Callable[[], Transition]) -> None:
        """Ask the state machine, and do what it says."""
        try:
            transition = ask()
            check_transition(transition, request.view, request.walks, model.spec)
        except Exception as error:  # isolation boundary: a plugin's state machine
            self._end(request, "failed", _machine_error(request.submit, error))
            return
        request.state = transition.state
        for start in transition.start:
            request.walks.add(start.walk)
            partition = model.spec.walk(start.walk).partition
            self._send_home(request, model, partition, StartWalk(request.key, start.walk, dict(start.take)))
        for partition in transition.finish:
            self._send_home(request, model, partition, FinishPartition(request.key, partition))
        if transition.end is not None:
            self._end(request, transition.end)

    def _send_home(self, request: Request, model: ServedModel, partition: str, message: Message) -> None:
        self._send_to_worker(request.route[model.layout.home_of[partition]], message)

    def _end(self, request: Request, reason: str, error: RequestError | None = None) -> None:
        """Send the one terminal event, and have everything freed."""
        if request.ended:
            return
        request.ended = True
        submit, model = request.submit, self._models[request.submit.model]
        del self._by_id[submit.request]
        self._ends[model.name, error.code if error else reason] += 1
        info = ErrorInfo.of(error) if error else None
        self._mailbox.send(submit.frontend, Ended(submit.ticket, reason, request.emitted, dict(request.tokens), info))
        if not request.admitted:
            model.queue.remove(request)
            self._mailbox.send(submit.frontend, Released(submit.ticket))
            return
        for name in request.open_on:
            self._send_to_worker(name, Close(request.key))
        self._let_go_if_free(request)

    def _closed(self, request: Request, worker: str) -> None:
        """A worker holds nothing of the request any more, or is gone."""
        if worker in request.open_on:
            request.open_on.discard(worker)
            self._workers.by_name[worker].load -= 1
            self._let_go_if_free(request)

    def _let_go_if_free(self, request: Request) -> None:
        """Make room for the next request once no worker holds this one."""
        if request.ended and not request.open_on:
            del self._by_key[request.key]
            self._mailbox.send(request.submit.frontend, Released(request.submit.ticket))
            model = self._models[request.submit.model]
            model.admitted -= 1
            self._admit(model)

    def _heard(self, name: str) -> None:
        """A worker's loop turns. One that was given up is asked to begin anew."""
        worker = self._workers.by_name.get(name)
        if worker is None:
            return
        worker.heard = time.monotonic()
        if not worker.up and worker.address is not None:
            self._mailbox.send(worker.address, Register(self._mailbox.address, self._first_key))

    def _worker_ready(self, ready: WorkerReady) -> None:
        known = self._workers.by_name.get(ready.worker)
        if known is not None and known.up:
            self._lose(ready.worker, "it was started anew")
        self._workers.ready(ready)
        self._predecessors.pop(ready.worker, None)
        self._tell_of_lost((ready.address,))
        self._announce()
        for model in self._models.values():
            self._admit(model)

    def _tell_of_lost(self, parties: tuple[Address, ...]) -> None:
        """Say which workers have ended before this Conductor's time."""
        for party in parties:
            for address in self._lost:
                self._mailbox.send(party, PeerLost(address))

    def _worker_failed(self, failed: WorkerFailed) -> None:
        self._lose(failed.worker, f"restarting: it {failed.reason}" if failed.restarting else failed.reason)
        if failed.restarting:
            self._workers.by_name[failed.worker].address = None
        self._announce()

    def _lose(self, name: str, reason: str) -> None:
        """A worker is gone: its requests end now; nothing is left there to free."""
        worker = self._workers.by_name[name]
        address, worker.state = worker.address or self._predecessors.pop(name, None), reason
        self._judge_models()
        error = Unavailable(f"worker {name!r} failed: {reason}", retry_after=RETRY_S)
        for request in list(self._by_key.values()):
            if name in request.open_on:
                self._end(request, "failed", error)
                self._closed(request, name)
        for model in self._models.values():
            if model.state != READY:
                for request in list(model.queue):
                    self._end(
                        request, "failed", Unavailable(f"model {model.name!r}: {model.state}", retry_after=RETRY_S)
                    )
        if address is not None:
            self._mailbox.disconnect(address)
            for other in (*self._frontends, *(each for _, each in self._workers.up())):
                self._mailbox.send(other, PeerLost(address))  # after its requests: what knows of none sends nothing

    def _judge_models(self) -> None:
        for model in self._models.values():
            model.state = self._workers.missing(model.layout) or READY
            model.capacity = self._workers.capacity(model.name)

    def _announce(self) -> None:
        """Tell frontends of models and workers: when something has changed, and as a beat."""
        self._next_announcement = time.monotonic() + BEAT_S
        self._judge_models()
        states = {name: model.state for name, model in self._models.items()}
        ready = all(model.state == READY for model in self._models.values())
        for frontend in self._frontends:
            self._mailbox.send(frontend, ServerState(ready, states, dict(self._workers.states())))

    def _look_at_the_clock(self) -> None:
        for request in self._deadlines.due():
            seconds = request.submit.timeout or self._models[request.submit.model].limits.deadline
            self._end(request, "failed", DeadlineExceeded(f"the request did not end within {seconds:g} s"))
        for name in self._workers.silent():
            _log.error("worker %r has not been heard of for %g s", name, SILENCE_S)
            self._lose(name, f"{SILENT} for {SILENCE_S:g} s")
            self._announce()
        if time.monotonic() >= self._next_announcement:
            self._announce()

    def _patience(self) -> float:
        """How long to wait for a message: until the next deadline, or until the next beat is due."""
        deadline, beat = self._deadlines.next(), max(self._next_announcement - time.monotonic(), 0.0)
        return beat if deadline is None else min(deadline, beat)

    def _send_to_worker(self, name: str, message: Message) -> None:
        address = self._workers.address(name)
        if address is not None:
            self._mailbox.send(address, message)

    def _samples(self) -> Iterator[Sample]:
        for model in self._models.values():
            labels = {"model": model.name}
            yield Sample("mstar_requests_running", "gauge", "Requests that were admitted.", labels, model.admitted)
            yield Sample("mstar_requests_waiting", "gauge", "Requests in the queue.", labels, len(model.queue))
            yield Sample("mstar_model_ready", "gauge", "Whether it can be asked.", labels, int(model.state == READY))
        for (name, reason), count in self._ends.items():
            labels = {"model": name, "reason": reason}
            yield Sample("mstar_conductor_ended", "counter", "Requests by model and outcome.", labels, count)
        for worker in self._workers.by_name.values():
            labels = {"worker": worker.name}
            yield Sample("mstar_worker_up", "gauge", "Whether requests are sent to it.", labels, int(worker.up))
            yield Sample("mstar_worker_load", "gauge", "Requests that it was given and holds.", labels, worker.load)
        yield Sample("mstar_outbox", "gauge", "Messages that wait.", {"party": "conductor"}, self._mailbox.waiting)


def _machine_error(submit: Submit, error: Exception) -> NodeFailed:
    """The failure of a request whose model's state machine raised, or asked for what cannot be."""
    name = submit.model
    _log.error("the state machine of model %r failed", name, exc_info=error, extra={"request": submit.request})
    return NodeFailed(f"the state machine of model {name!r} failed: {type(error).__name__}: {error}")
