"""The worker's loop: messages in, batches to the device thread, outcomes back into the walks.

Everything here runs on the loop thread. A turn of the loop handles what arrived, settles the batches that have run,
hands over the next ones, sends what was made, and then sleeps until a message or the device thread wakes it.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from mstar_core.engines.base import Outputs
from mstar_core.errors import NodeFailed, RequestError, Unavailable
from mstar_core.wire.exchange import Exchange
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import (
    BEAT_S,
    Address,
    AskMetrics,
    Beat,
    Close,
    Closed,
    Fetch,
    Fetched,
    FinishPartition,
    HandOver,
    Message,
    Metrics,
    NodeDone,
    Open,
    PeerLost,
    Read,
    Register,
    RunNode,
    StartWalk,
    Stop,
    StreamCredit,
    StreamItem,
    StreamItems,
    TakeOver,
    TakeSlice,
    WalkDone,
    WorkerReady,
)
from mstar_core.worker.batches import Batches
from mstar_core.worker.device import DeviceThread
from mstar_core.worker.early import EarlyMessages
from mstar_core.worker.gauges import WorkerGauges
from mstar_core.worker.models import Flight, LoadedModel
from mstar_core.worker.moves import Departure, Moves
from mstar_core.worker.post import Post
from mstar_core.worker.program import RunOp
from mstar_core.worker.requests import RequestRun
from mstar_core.worker.scheduler import Scheduler
from mstar_core.worker.values import pack, taken, unpack
from mstar_core.worker.walks import ForeignRun, Task, WalkRun, advance, store

_log = logging.getLogger(__name__)

BATCHES_IN_FLIGHT = 2
"""One runs, one waits behind it: the device never idles while the loop settles and collects."""


class Worker:
    """Owns engines, streams and local loops; talks to the Conductor, to frontends and to other workers.

    `describe` makes the message that says what is loaded here; `trace_to` is a frontend that wants to know what runs.
    """

    def __init__(
        self,
        name: str,
        mailbox: Mailbox,
        conductor: Address,
        models: Mapping[str, LoadedModel],
        exchange: Exchange,
        describe: Callable[[], WorkerReady],
        *,
        run_ahead: bool = True,
        trace_to: Address | None = None,
    ) -> None:
        self.name = name
        self._mailbox = mailbox
        self._models = models
        self._exchange = exchange
        self._describe = describe
        self._requests: dict[int, RequestRun] = {}
        self._tickets: dict[tuple[Address, int], RequestRun] = {}
        self._early = EarlyMessages(exchange)
        self._numbers = itertools.count(1)
        self._stopping = False
        self._next_beat = 0.0
        self._waker = mailbox.waker()
        self._device = DeviceThread(name, self._waker.wake)
        self._scheduler = Scheduler(
            [queue for model in models.values() for queue in model.queues.values()], run_ahead=run_ahead
        )
        self._post = Post(mailbox, exchange, conductor)
        self._batches = Batches(self)
        self._moves = Moves(self._post, self._device.submit, self._queue)
        self._gauges = WorkerGauges(name, models, self._post, trace_to)

    def run(self) -> None:
        """Report ready, and serve until `Stop` arrives."""
        try:
            self._post.tell(self._describe())
            while not self._stopping:
                for message in self._mailbox.receive(max(self._next_beat - time.monotonic(), 0.0)):
                    self._handle(message)
                for flight in self._device.finished():
                    self._settle(flight)
                self._dispatch()
                self._post.flush()
                self._beat()
        finally:
            self._gauges.send_spans()
            self._device.close()
            self._waker.close()
            self._mailbox.close()

    def _handle(self, message: Message) -> None:
        match message:
            case Open():
                self._open(message)
            case StartWalk() | FinishPartition() | Close() if message.key not in self._requests:
                pass  # a dead Conductor's last words
            case StartWalk():
                self._start_walk(self._requests[message.key], message)
            case FinishPartition():
                self._finish(self._requests[message.key], message.partition)
            case Close():
                self._close(self._requests[message.key])
            case StreamItems():
                for item in message.items:
                    self._for_request(item.key, item)
            case RunNode() | NodeDone() | StreamCredit() | HandOver() | TakeOver() | TakeSlice() | Fetched():
                self._for_request(message.key, message)
            case Read():
                if (reader := self._tickets.get((message.frontend, message.ticket))) is not None:
                    reader.outlet.read(message.outputs)
            case AskMetrics():
                samples = [*self._gauges.samples(self._requests), *self._exchange.samples()]
                self._mailbox.send(message.reply_to, Metrics(message.number, self.name, samples))
            case PeerLost():
                self._post.forget(message.address)
                self._mailbox.disconnect(message.address)
                self._exchange.forget(message.address)
            case Register():
                self._register(message)
            case Stop():
                self._stopping = True
            case _:
                raise AssertionError(f"a worker gets no {type(message).__name__}")

    def _for_request(self, key: int, message: Any) -> None:
        """Handle what another party says of a request, which may be closed already, or not yet open."""
        request = self._requests.get(key)
        if request is None or request.closing:
            self._early.keep(key, message)
            return
        try:
            self._handle_peer(request, message)
        except RequestError as error:
            self._fail(request, "", "", error)

    def _handle_peer(self, request: RequestRun, message: Any) -> None:
        match message:
            case RunNode():
                self._run_for_another(request, message)
            case NodeDone():
                run, task = request.calls.pop(message.run)
                task.tokens = message.tokens
                outputs = {port: unpack(value, self._exchange) for port, value in message.outputs.items()}
                self._stored(run, task, outputs)
            case StreamItem():
                stream = request.consuming(message.edge)
                if message.item is None:
                    stream.finish()
                else:
                    stream.reserve()
                    stream.push(taken(message.item, self._exchange))
            case StreamCredit():
                request.senders[message.edge].credit(message.places)
            case HandOver():
                self._moves.hand_over(request, message.node, message.to)
            case TakeOver():
                self._moves.take_over(request, message)
            case TakeSlice():
                self._moves.take_slice(request, message)
            case Fetched():
                request.inputs = {
                    name: [taken(ref, self._exchange) for ref in refs] for name, refs in message.inputs.items()
                }
                for start in request.starts:
                    self._start_walk(request, start)

    def _open(self, message: Open) -> None:
        if self._early.is_late(message.key):
            return
        model = self._models[message.model]
        request = RequestRun(message, model, self._post)
        self._requests[message.key] = request
        self._tickets[message.frontend, message.ticket] = request
        self._take_inputs(request, message)
        for node in model.nodes_run_by(self._post.address, message.route):
            try:
                model.engines[node].open(request.nodes[node])
            except Exception as error:  # isolation boundary: a node's code
                self._fail(request, "", node, error)
                break
            request.opened.append(node)
        for early in self._early.opened(message.key):
            self._for_request(message.key, early)

    def _take_inputs(self, request: RequestRun, message: Open) -> None:
        """Take the tensors that this worker's walks read, or ask for those that are on another host.

        When the frontend has dropped them, the request has ended, and its `Close` is coming.
        """
        wanted = request.model.inputs_read_by(self._post.address, message.route)
        inputs = {name: refs for name, refs in message.inputs.items() if name in wanted}
        if not all(self._exchange.reachable(ref) for refs in inputs.values() for ref in refs):
            self._mailbox.send(message.frontend, Fetch(message.key, inputs, self._post.address))
            return
        try:
            request.inputs = {name: [taken(ref, self._exchange) for ref in refs] for name, refs in inputs.items()}
        except Unavailable:
            request.closing = True

    def _start_walk(self, request: RequestRun, message: StartWalk) -> None:
        if request.closing:
            return
        if request.inputs is None:
            request.starts.append(message)
            return
        compiled = request.model.compiled
        run = WalkRun(request, compiled.programs[message.walk])
        for name, slot in compiled.inputs[message.walk]:
            pieces = request.inputs.get(name)
            if pieces:
                run.slots[slot] = pieces[message.take.get(name, 0)]
        self._advance(run, 0)

    def _finish(self, request: RequestRun, partition: str) -> None:
        if not request.closing:
            for edge in request.model.compiled.edges_from[partition]:
                request.producing(edge).finish()

    def _fail(self, request: RequestRun, walk: str, node: str, error: Exception) -> None:
        """Report a request's failure, after which nothing of it has an effect, not even what is in flight."""
        self._post.report(request, walk, node, error)
        self._stop(request)

    def _close(self, request: RequestRun) -> None:
        self._stop(request)
        if not request.in_flight:
            self.free(request)

    def _stop(self, request: RequestRun) -> None:
        request.closing = True
        for queue in request.model.queues.values():
            if any(task.run.request is request for task in queue.tasks):
                queue.tasks = type(queue.tasks)(task for task in queue.tasks if task.run.request is not request)

    def free(self, request: RequestRun) -> None:
        """Free everything that a closing request holds; nothing of it is in flight."""
        for node in request.opened:
            try:
                request.model.engines[node].close(request.nodes[node])
            except Exception as error:  # isolation boundary: a node's code
                _log.error("node %r could not free a request", node, exc_info=error, extra={"request": request.id})
        del self._requests[request.key]
        del self._tickets[request.frontend, request.ticket]
        self._post.tell(Closed(request.key, self.name))

    def make_ready(self, run: WalkRun, op: RunOp) -> None:
        """Queue a run of a node, now or when its streams and its client allow it."""
        request = run.request
        if request.closing:
            return
        if run.program.emits and not request.outlet.room():
            request.outlet.when_room(lambda: self.make_ready(run, op))
            return
        for _, edge in op.takes:
            if not request.consuming(edge).ready():
                request.consuming(edge).when_ready(lambda: self.make_ready(run, op))
                return
        for _, edge in op.pushes:
            if not request.producing(edge).room():
                request.producing(edge).when_room(lambda: self.make_ready(run, op))
                return
        inputs: dict[str, Any] = {port: run.slots[slot] for port, slot in op.inputs}
        for port, edge in op.takes:
            inputs[port] = request.consuming(edge).take()
        for _, edge in op.pushes:
            request.producing(edge).reserve()
        node = request.nodes[op.node]
        task = Task(request=node, walk=run.program.walk, inputs=inputs, step=node.runs, run=run, op=op)
        node.runs += 1
        if op.node in request.model.movable or op.queue in request.remote:
            self._place(run, task)
        else:
            self._queue(task)

    def _queue(self, task: Task) -> None:
        task.run.request.model.queues[task.op.queue].tasks.append(task)

    def _place(self, run: WalkRun, task: Task) -> None:
        """Queue a run on the worker that it belongs to, and bring there what its node holds for the request."""
        request, op = run.request, task.op
        target = request.model.runner(op.queue, request.route)
        moving = op.node in request.model.movable and self._moves.bring(request, op.node, target)
        if target != self._post.address:
            self._run_elsewhere(run, task, target, awaits=moving)
        else:
            self._moves.run(task, moving=moving)

    def _run_elsewhere(self, run: WalkRun, task: Task, target: Address, *, awaits: bool) -> None:
        request, number = run.request, next(self._numbers)
        try:
            inputs = {port: pack(value, target, self._exchange) for port, value in task.inputs.items()}
        except Exception as error:  # isolation boundary: what a node made
            self._fail(request, task.walk, task.op.node, error)
            return
        request.calls[number] = (run, task)
        message = RunNode(request.key, number, task.op.queue, task.step, inputs, self._post.address, awaits)
        self._post.send(target, message)

    def _run_for_another(self, request: RequestRun, message: RunNode) -> None:
        queue = request.model.queues[message.queue]
        task = Task(
            request=request.nodes[queue.queue.node],
            walk=queue.queue.walk,
            inputs={port: unpack(value, self._exchange) for port, value in message.inputs.items()},
            step=message.step,
            run=ForeignRun(request, message.home, message.run),
            op=queue.foreign,
        )
        self._moves.run(task, moving=message.awaits)

    def completed(self, task: Task, outputs: Outputs) -> None:
        """A run has given its outputs, or the exception that it alone raised."""
        request, run = task.run.request, task.run
        if isinstance(outputs, Exception):
            self._fail(request, task.walk, task.op.node, outputs)
        elif outputs is not None and isinstance(run, WalkRun):
            self._stored(run, task, outputs)
        elif outputs is not None and isinstance(run, ForeignRun):
            self._answer(run, task, outputs)

    def _answer(self, run: ForeignRun, task: Task, outputs: Mapping[str, Any]) -> None:
        try:
            packed = {port: pack(value, run.home, self._exchange) for port, value in outputs.items()}
        except Exception as error:  # isolation boundary: what a node made
            self._fail(run.request, task.walk, task.op.node, error)
            return
        self._post.send(run.home, NodeDone(run.request.key, run.number, packed, task.tokens))

    def _stored(self, run: WalkRun, task: Task, outputs: Mapping[str, Any]) -> None:
        try:
            store(run, task, outputs)
        except Exception as error:  # isolation boundary: what a node made
            self._fail(run.request, task.walk, task.op.node, error)
            return
        self._advance(run, task.op.next, task.op.node, task.ahead)

    def dropped(self, task: Task) -> None:
        """A run that turned out to be void has been undone: its walk goes on behind its loop."""
        assert isinstance(task.run, WalkRun), "only a loop's home starts rounds ahead"
        self._advance(task.run, task.run.resume, task.op.node)

    def _advance(self, run: WalkRun, place: int, node: str = "", ahead: Task | None = None) -> None:
        try:
            advance(run, place, self, ahead)
        except RequestError as error:
            self._fail(run.request, run.program.walk, node, error)

    def emit(self, run: WalkRun, modality: str, value: Any) -> None:
        """Hand a value, if the client wants it, to its frontend."""
        request = run.request
        if value is None or modality not in request.outputs:
            return
        try:
            self._post.emit(request, modality, value)
        except Exception as error:  # isolation boundary: what a node made
            problem = f"a value in walk {run.program.walk!r} cannot be emitted as {modality}"
            raise NodeFailed(f"{problem}: {type(error).__name__}: {error}") from error
        request.outlet.emitted()
        run.emitted += 1

    def walk_ended(self, run: WalkRun) -> None:
        """Tell the Conductor how the walk ended."""
        flags = {name: bool(run.slots[slot]) for name, slot in run.program.reports}
        self._post.tell(WalkDone(run.request.key, run.program.walk, run.how, flags, run.emitted, run.tokens))

    def _dispatch(self) -> None:
        while self._device.in_flight < BATCHES_IN_FLIGHT:
            flight = self._scheduler.next()
            if flight is None:
                return
            self._device.submit(flight)

    def _settle(self, flight: Flight) -> None:
        if isinstance(flight, Departure):
            self._moves.departed(flight)
            if flight.request.closing and not flight.request.in_flight:
                self.free(flight.request)
        elif flight.queue is not None:
            self._gauges.count(flight, flight.queue)
            self._batches.settle(flight, flight.queue)

    def _register(self, message: Register) -> None:
        """A Conductor that knows nothing of this worker: whatever is here, nobody waits for."""
        self._mailbox.disconnect(self._post.conductor)
        self._post.conductor = message.conductor
        for request in list(self._requests.values()):
            self._close(request)
        self._early.begin(message.first_key)
        self._post.tell(self._describe())

    def _beat(self) -> None:
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + BEAT_S
            self._post.tell(Beat(self.name))
            self._gauges.send_spans()
