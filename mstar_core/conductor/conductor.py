"""The Conductor's loop: admits requests, asks state machines what follows, and ends each request exactly once.

It hears of walks, not of tokens, and it touches no tensor. Everything runs on its own thread.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping

from mstar_core.conductor.models import ServedModel
from mstar_core.conductor.requests import Request, view_of
from mstar_core.conductor.transitions import check_transition
from mstar_core.errors import Cancelled, Conflict, NodeFailed, NotFound, RequestError, Unavailable
from mstar_core.spec.machine import Transition, WalkEnded
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import (
    Cancel,
    Close,
    Closed,
    Ended,
    ErrorInfo,
    FinishPartition,
    Message,
    Open,
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


class Conductor:
    """Owns the request table, the state machines and admission.

    `frontends` are told when the server's state changes.
    """

    def __init__(self, mailbox: Mailbox, models: Mapping[str, ServedModel], frontends: tuple[str, ...]) -> None:
        self._mailbox = mailbox
        self._models = models
        self._frontends = frontends
        self._endpoints: dict[str, str] = {}
        self._by_id: dict[str, Request] = {}
        self._by_key: dict[int, Request] = {}
        self._keys = itertools.count(1)
        self._stopping = False

    def run(self) -> None:
        """Serve until `Stop` arrives, then stop the workers."""
        try:
            while not self._stopping:
                for message in self._mailbox.receive(None):
                    self._handle(message)
        finally:
            for endpoint in self._endpoints.values():
                self._mailbox.send(endpoint, Stop())
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
                self._closed(self._by_key.pop(message.key))
            case WalkFailed():
                self._end(self._by_key[message.key], "failed", message.error.rebuild())
            case Cancel():
                self._cancel(message)
            case WorkerReady():
                self._worker_ready(message)
            case WorkerFailed():
                self._worker_failed(message)
            case Stop():
                self._stopping = True
            case _:
                raise AssertionError(f"the Conductor gets no {type(message).__name__}")

    def _submit(self, submit: Submit) -> None:
        try:
            request = self._checked(submit)
        except RequestError as error:
            self._mailbox.send(submit.frontend, Ended(submit.ticket, "failed", 0, {}, ErrorInfo.of(error)))
            return
        self._by_id[submit.request] = request
        self._models[submit.model].queue.append(request)
        self._admit(self._models[submit.model])

    def _checked(self, submit: Submit) -> Request:
        """The request, when it can be served at all; raises the error that refuses it."""
        if submit.request in self._by_id:
            raise Conflict(f"a request with the id {submit.request!r} is already being served")
        model = self._models.get(submit.model)
        if model is None:
            raise NotFound(f"no model {submit.model!r} is served here", param="model")
        if not model.ready:
            raise Unavailable(f"model {submit.model!r} is not ready: {model.reason}", retry_after=1.0)
        view = view_of(submit)
        try:
            demand = model.spec.machine.demand(view)
        except Exception as error:  # isolation boundary: a plugin's state machine
            raise _machine_error(submit, error) from error
        request = Request(submit, demand, view)
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
        while model.queue and model.has_room:
            request = model.queue.popleft()
            request.admitted = True
            model.admitted += 1
            self._start(request, model)

    def _start(self, request: Request, model: ServedModel) -> None:
        submit = request.submit
        request.key = next(self._keys)
        self._by_key[request.key] = request
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
        )
        self._send_to_worker(model, opened)
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
            check_transition(transition, request, model.spec)
        except Exception as error:  # isolation boundary: a plugin's state machine
            self._end(request, "failed", _machine_error(request.submit, error))
            return
        request.state = transition.state
        for start in transition.start:
            request.walks.add(start.walk)
            self._send_to_worker(model, StartWalk(request.key, start.walk, dict(start.take)))
        for partition in transition.finish:
            self._send_to_worker(model, FinishPartition(request.key, partition))
        if transition.end is not None:
            self._end(request, transition.end)

    def _end(self, request: Request, reason: str, error: RequestError | None = None) -> None:
        """Send the one terminal event, and have everything freed."""
        if request.ended:
            return
        request.ended = True
        submit, model = request.submit, self._models[request.submit.model]
        del self._by_id[submit.request]
        info = ErrorInfo.of(error) if error else None
        self._mailbox.send(submit.frontend, Ended(submit.ticket, reason, request.emitted, dict(request.tokens), info))
        if request.admitted:
            self._send_to_worker(model, Close(request.key))
        else:
            model.queue.remove(request)

    def _closed(self, request: Request) -> None:
        model = self._models[request.submit.model]
        model.admitted -= 1
        self._admit(model)

    def _worker_ready(self, ready: WorkerReady) -> None:
        self._endpoints[ready.worker] = ready.endpoint
        for name in ready.nodes:
            model = self._models[name]
            model.worker, model.ready, model.reason = ready.worker, True, "ready"
            model.capacity = ready.capacity.get(name, {})
        self._announce()

    def _worker_failed(self, failed: WorkerFailed) -> None:
        """A worker is gone: its models are down, and their requests end now; nothing is left there to free."""
        self._endpoints.pop(failed.worker, None)
        lost = [name for name, model in self._models.items() if model.worker in ("", failed.worker)]
        for name in lost:
            self._models[name].ready, self._models[name].reason = False, failed.reason
        for request in [each for each in self._by_id.values() if each.submit.model in lost]:
            self._end(request, "failed", Unavailable(f"worker {failed.worker!r} failed: {failed.reason}"))
        self._by_key = {key: each for key, each in self._by_key.items() if each.submit.model not in lost}
        for name in lost:
            self._models[name].admitted = 0
        self._announce()

    def _announce(self) -> None:
        states = {name: model.reason for name, model in self._models.items()}
        ready = all(model.ready for model in self._models.values())
        for frontend in self._frontends:
            self._mailbox.send(frontend, ServerState(ready, states))

    def _send_to_worker(self, model: ServedModel, message: Message) -> None:
        endpoint = self._endpoints.get(model.worker)
        if endpoint is not None:
            self._mailbox.send(endpoint, message)


def _machine_error(submit: Submit, error: Exception) -> NodeFailed:
    """The failure of a request whose model's state machine raised, or asked for what cannot be."""
    name = submit.model
    _log.error("the state machine of model %r failed", name, exc_info=error, extra={"request": submit.request})
    return NodeFailed(f"the state machine of model {name!r} failed: {type(error).__name__}: {error}")
