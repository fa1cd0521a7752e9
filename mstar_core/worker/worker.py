"""The worker's loop: messages in, batches to the device thread, outcomes back into the walks.

Everything here runs on the loop thread. A turn of the loop handles what arrived, settles the batches that have run,
hands over the next ones, sends what was emitted, and then sleeps until a message or the device thread wakes it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mstar_core.engines.base import Outputs, Row
from mstar_core.errors import NodeFailed, RequestError
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import (
    Close,
    Closed,
    Emitted,
    ErrorInfo,
    FinishPartition,
    Message,
    Open,
    Output,
    StartWalk,
    Stop,
    WalkDone,
    WalkFailed,
)
from mstar_core.wire.store import LocalStore
from mstar_core.worker.device import DeviceThread
from mstar_core.worker.gauges import WorkerGauges
from mstar_core.worker.models import Flight, LoadedModel, ReadyQueue
from mstar_core.worker.program import RunOp
from mstar_core.worker.scheduler import Scheduler
from mstar_core.worker.walks import RequestRun, Task, WalkRun, advance, store

_log = logging.getLogger(__name__)

BATCHES_IN_FLIGHT = 2
"""One runs, one waits behind it: the device never idles while the loop settles and collects."""


class Worker:
    """Owns engines, streams and local loops; talks to the Conductor and, with what it emits, to frontends."""

    def __init__(
        self,
        name: str,
        mailbox: Mailbox,
        conductor: str,
        models: Mapping[str, LoadedModel],
        tensors: LocalStore,
        *,
        run_ahead: bool = True,
    ) -> None:
        self.name = name
        self.gauges = WorkerGauges()
        self._mailbox = mailbox
        self._conductor = conductor
        self._models = models
        self._tensors = tensors
        self._requests: dict[int, RequestRun] = {}
        self._emitted: dict[str, list[Output]] = {}
        self._stopping = False
        self._waker = mailbox.waker()
        self._device = DeviceThread(name, self._waker.wake)
        queues = [queue for model in models.values() for queue in model.queues]
        self._scheduler = Scheduler(queues, run_ahead=run_ahead)

    @property
    def open_requests(self) -> int:
        """Requests that hold resources here."""
        return len(self._requests)

    def engine_metrics(self) -> Iterator[tuple[str, str, str, float]]:
        """(model, node, gauge, value) of every engine."""
        for model, loaded in self._models.items():
            for node, engine in loaded.engines.items():
                for name, value in engine.metrics().items():
                    yield model, node, name, value

    def run(self) -> None:
        """Serve until `Stop` arrives."""
        try:
            while not self._stopping:
                for message in self._mailbox.receive(None):
                    self._handle(message)
                for flight in self._device.finished():
                    self._settle(flight)
                self._dispatch()
                self._send_emitted()
        finally:
            self._device.close()
            self._waker.close()
            self._mailbox.close()

    def _handle(self, message: Message) -> None:
        match message:
            case Open():
                self._open(message)
            case StartWalk():
                self._start_walk(message)
            case FinishPartition():
                request = self._requests[message.key]
                for edge in request.model.compiled.edges_from[message.partition]:
                    request.streams[edge].finish()
            case Close():
                self._close(message.key)
            case Stop():
                self._stopping = True
            case _:
                raise AssertionError(f"a worker gets no {type(message).__name__}")

    def _open(self, message: Open) -> None:
        model = self._models[message.model]
        inputs = self._inputs(message)
        request = RequestRun(message, model, inputs or {})
        self._requests[message.key] = request
        request.closing = inputs is None
        for node, engine in model.engines.items():
            try:
                engine.open(request.nodes[node])
            except Exception as error:  # isolation boundary: a node's code
                request.closing = True
                self._report(request, "", node, error)
                return
            request.opened.append(node)

    def _inputs(self, message: Open) -> dict[str, list[torch.Tensor]] | None:
        """A request's tensors; None when its frontend has dropped them: it has ended, and its `Close` is coming."""
        take = self._tensors.take
        try:
            return {name: [torch.from_numpy(take(ref)) for ref in refs] for name, refs in message.inputs.items()}
        except KeyError:
            return None

    def _start_walk(self, message: StartWalk) -> None:
        request = self._requests[message.key]
        if request.closing:
            return
        compiled = request.model.compiled
        run = WalkRun(request, compiled.programs[message.walk])
        for name, slot in compiled.inputs[message.walk]:
            pieces = request.inputs.get(name)
            if pieces:
                run.slots[slot] = pieces[message.take.get(name, 0)]
        self._advance(run, 0)

    def _close(self, key: int) -> None:
        request = self._requests[key]
        request.closing = True
        for queue in request.model.queues:
            if any(task.run.request is request for task in queue.tasks):
                queue.tasks = type(queue.tasks)(task for task in queue.tasks if task.run.request is not request)
        if not request.in_flight:
            self._free(request)

    def _free(self, request: RequestRun) -> None:
        for node in request.opened:
            try:
                request.model.engines[node].close(request.nodes[node])
            except Exception as error:  # isolation boundary: a node's code
                _log.error("node %r could not free a request", node, exc_info=error, extra={"request": request.id})
        del self._requests[request.key]
        self._mailbox.send(self._conductor, Closed(request.key, self.name))

    def make_ready(self, run: WalkRun, op: RunOp) -> None:
        """Queue a run of a node, now or when its streams allow it."""
        streams = run.request.streams
        for _, edge in op.takes:
            if not streams[edge].ready():
                streams[edge].when_ready(lambda: self.make_ready(run, op))
                return
        for _, edge in op.pushes:
            if not streams[edge].room():
                streams[edge].when_room(lambda: self.make_ready(run, op))
                return
        inputs: dict[str, Any] = {port: run.slots[slot] for port, slot in op.inputs}
        for port, edge in op.takes:
            inputs[port] = streams[edge].take()
        for _, edge in op.pushes:
            streams[edge].reserve()
        node = run.request.nodes[op.node]
        task = Task(request=node, walk=run.program.walk, inputs=inputs, step=node.runs, run=run, op=op)
        node.runs += 1
        run.request.model.queues[op.queue].tasks.append(task)

    def emit(self, run: WalkRun, modality: str, value: Any) -> None:
        """Hand a value, if the client wants it, to its frontend at the end of this turn."""
        request = run.request
        if value is None or modality not in request.outputs:
            return
        try:
            array = _as_array(value)
        except Exception as error:  # isolation boundary: what a node made
            problem = f"a value in walk {run.program.walk!r} cannot be emitted as {modality}"
            raise NodeFailed(f"{problem}: {type(error).__name__}: {error}") from error
        ref = self._tensors.publish(array)
        self._emitted.setdefault(request.frontend, []).append(Output(request.ticket, modality, ref))
        run.emitted += 1

    def walk_ended(self, run: WalkRun) -> None:
        """Tell the Conductor how the walk ended."""
        flags = {name: bool(run.slots[slot]) for name, slot in run.program.reports}
        done = WalkDone(run.request.key, run.program.walk, run.how, flags, run.emitted, run.tokens)
        self._mailbox.send(self._conductor, done)

    def _dispatch(self) -> None:
        while self._device.in_flight < BATCHES_IN_FLIGHT:
            flight = self._scheduler.next()
            if flight is None:
                return
            self._device.submit(flight)

    def _settle(self, flight: Flight) -> None:
        """A batch has run: bring its outcomes into the walks. A failed one waits for the batch started ahead on it."""
        queue = flight.queue
        queue.in_flight.remove(flight)
        self.gauges.count(queue, flight)
        if queue.failed is not None:
            failed, queue.failed = queue.failed, None
            self._undo(flight, failed)
            self._retry(failed)
        elif flight.error is not None and queue.in_flight:
            queue.failed = flight
        elif flight.error is not None:
            self._retry(flight)
        else:
            self._complete(flight)

    def _complete(self, flight: Flight) -> None:
        tasks, engine = _tasks(flight), flight.queue.engine
        void = [task for task in tasks if task.void or task.run.request.closing]
        for task in void:
            engine.drop(flight.batch, task)
        outcomes = engine.finish(flight.batch)
        for task, outcome in zip(tasks, outcomes, strict=True):
            task.run.request.in_flight -= 1
            if void and task in void:
                self._dropped(task)
            else:
                self._completed(flight.queue, task, outcome)

    def _completed(self, queue: ReadyQueue, task: Task, outcome: Outputs) -> None:
        if outcome is None:
            queue.tasks.appendleft(task)
        elif isinstance(outcome, Exception):
            self._fail(task, outcome)
        else:
            try:
                store(task, outcome)
            except NodeFailed as error:
                self._fail(task, error)
                return
            self._advance(task.run, task.op.next, task.op.node, task.ahead)

    def _advance(self, run: WalkRun, place: int, node: str = "", ahead: Task | None = None) -> None:
        try:
            advance(run, place, self, ahead)
        except RequestError as error:
            self._report(run.request, run.program.walk, node, error)

    def _dropped(self, task: Task) -> None:
        """A run without effect is over: its request is closing, or its walk goes on behind the loop."""
        request = task.run.request
        self._uncount(task)
        if request.closing:
            if not request.in_flight:
                self._free(request)
        else:
            self._advance(task.run, task.run.resume, task.op.node)

    def _uncount(self, task: Task) -> None:
        """Take back what was counted when the task was queued."""
        task.request.runs -= 1
        for _, edge in task.op.pushes:
            task.run.request.streams[edge].release()

    def _undo(self, flight: Flight, before: Flight) -> None:
        """Take a batch back whose predecessor failed: runs started ahead vanish, the others are ready again."""
        started_ahead = {task.ahead for task in _tasks(before)}
        for task in _tasks(flight):
            flight.queue.engine.drop(flight.batch, task)
            task.run.request.in_flight -= 1
            if task in started_ahead:
                self._uncount(task)
            else:
                self._requeue(flight.queue, task)
        for task in _tasks(before):
            task.ahead = None

    def _retry(self, flight: Flight) -> None:
        """A batch raised.

        Its calls run again one by one, so that only the one at fault fails; a lone one has failed.
        """
        assert flight.error is not None
        tasks = _tasks(flight)
        for task in tasks:
            flight.queue.engine.drop(flight.batch, task)
        if len(tasks) == 1 and not tasks[0].run.request.closing:
            tasks[0].run.request.in_flight -= 1
            self._fail(tasks[0], flight.error)
            return
        for task in reversed(tasks):
            task.run.request.in_flight -= 1
            task.solo = True
            self._requeue(flight.queue, task)

    def _requeue(self, queue: ReadyQueue, task: Task) -> None:
        request = task.run.request
        if not request.closing:
            queue.tasks.appendleft(task)
        elif not request.in_flight:
            self._free(request)

    def _fail(self, task: Task, error: Exception) -> None:
        """Report a request's failure; the Conductor closes it."""
        self._report(task.run.request, task.walk, task.op.node, error)

    def _report(self, request: RequestRun, walk: str, node: str, error: Exception) -> None:
        """Tell the Conductor; `walk` is "" when the node failed to take the request in."""
        if not isinstance(error, RequestError):
            where = f"node {node!r} failed in walk {walk!r}" if walk else f"node {node!r} failed to take the request in"
            _log.error(where, exc_info=error, extra={"request": request.id})
            error = NodeFailed(f"{where}: {type(error).__name__}: {error}")
        self._mailbox.send(self._conductor, WalkFailed(request.key, walk, node, ErrorInfo.of(error)))

    def _send_emitted(self) -> None:
        for frontend, outputs in self._emitted.items():
            self._mailbox.send(frontend, Emitted(outputs))
        self._emitted.clear()


def _tasks(flight: Flight) -> Sequence[Task]:
    return flight.batch.calls  # type: ignore[return-value]


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    """A value as the frontend's numpy array, in memory of its own; bfloat16 becomes float32, which numpy knows."""
    if isinstance(value, Row):
        value = value.tensor()
    if isinstance(value, torch.Tensor):
        value = value.detach()
        value = (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()
    return np.array(value)
