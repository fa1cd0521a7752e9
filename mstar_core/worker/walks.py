"""A walk's way through its compiled program: slots, counters, and the step from one operation to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mstar_core.engines.base import Call
from mstar_core.errors import NodeFailed
from mstar_core.spec.machine import AT_MOST, DONE, UNTIL
from mstar_core.worker.program import EmitOp, ForkOp, JoinOp, LoopEnd, LoopStart, Program, RunOp

if TYPE_CHECKING:
    from mstar_core.wire.messages import Address
    from mstar_core.worker.requests import RequestRun


class WalkRun:
    """One walk of one request. `resume` is where to go on once a run that was started ahead has been dropped."""

    __slots__ = ("counters", "emitted", "how", "program", "request", "resume", "slots", "tokens")

    def __init__(self, request: RequestRun, program: Program) -> None:
        self.request = request
        self.program = program
        self.slots: list[Any] = request.slots[program.partition]
        self.counters = [0] * program.counters
        self.how = DONE
        self.emitted = 0
        self.tokens = 0
        self.resume = -1


@dataclass(slots=True, eq=False)
class ForeignRun:
    """One run of a node for a walk that another worker, `home`, walks and knows by `number`."""

    request: RequestRun
    home: Address
    number: int


@dataclass(slots=True, eq=False, kw_only=True)
class Task(Call):
    """A call on its way: whose run and which operation it is, and the run started ahead on its outputs, if any.

    A `void` task has no effect: its loop ended before it. A `solo` task runs in a batch of its own, since a batch
    that it was in has failed.
    """

    run: WalkRun | ForeignRun
    op: RunOp
    ahead: Task | None = None
    void: bool = False
    solo: bool = False


class Host(Protocol):
    """What the walk asks of its worker."""

    def make_ready(self, run: WalkRun, op: RunOp) -> None:
        """Queue a run of a node, now or when its streams allow it."""
        ...

    def emit(self, run: WalkRun, modality: str, value: Any) -> None:
        """Send a value to the client."""
        ...

    def walk_ended(self, run: WalkRun) -> None:
        """Tell the Conductor."""
        ...


def store(run: WalkRun, task: Task, outputs: Mapping[str, Any]) -> None:
    """Put a run's outputs where its walk and its streams expect them.

    A sparse output that is missing empties its slot. Raises `NodeFailed` when one is missing that must not be.
    """
    op = task.op
    for port, slot in op.outputs:
        value = outputs.get(port)
        if value is None and port not in op.sparse:
            raise NodeFailed(f"node {op.node!r} gave no output {port!r} in walk {task.walk!r}")
        run.slots[slot] = value
    for port, edge in op.pushes:
        stream = run.request.producing(edge)
        if outputs.get(port) is None:
            stream.release()
        else:
            stream.push(outputs[port])
    run.tokens += task.tokens


def advance(run: WalkRun, place: int, host: Host, ahead: Task | None = None) -> None:
    """Go on from operation `place` until runs are queued or the walk has ended.

    `ahead` is the run already started for the next round of the loop that follows; when the loop goes round, it is that
    round, and when the loop ends, it is void and the walk goes on once it has been dropped.
    Raises `RequestError` when the request gives no bound for a loop, or a value cannot be emitted.
    """
    ops = run.program.ops
    while True:
        op = ops[place]
        if isinstance(op, RunOp):
            if ahead is None:
                host.make_ready(run, op)
            return
        if isinstance(op, LoopEnd):
            place = _round(run, op)
            if ahead is not None and place == op.exit:
                ahead.void, run.resume = True, place
                return
        elif isinstance(op, EmitOp):
            host.emit(run, op.modality, run.slots[op.slot])
            place = op.next
        elif isinstance(op, LoopStart):
            place = _enter(run, op)
        elif isinstance(op, ForkOp):
            run.counters[op.counter] = len(op.branches)
            for branch in op.branches:
                advance(run, branch, host)
            return
        elif isinstance(op, JoinOp):
            run.counters[op.counter] -= 1
            if run.counters[op.counter]:
                return
            place = op.next
        else:
            host.walk_ended(run)
            return


def rounds_left(run: WalkRun, loop: LoopEnd) -> int:
    """How many rounds the loop may still begin after the one that is under way."""
    return run.counters[loop.bound] - run.counters[loop.counter] - 1


def _enter(run: WalkRun, op: LoopStart) -> int:
    bound = run.request.count(op.times)
    run.counters[op.counter], run.counters[op.bound] = 0, bound
    for _, gathered in op.gather:
        run.slots[gathered] = []
    if bound > 0:
        return op.body
    for slot, _ in op.gather:
        run.slots[slot] = []
    if op.dynamic:
        run.how = AT_MOST
    return op.exit


def _round(run: WalkRun, op: LoopEnd) -> int:
    """Count one round; where to go on. The stop signal is looked at before the bound."""
    for slot, gathered in op.gather:
        run.slots[gathered].append(run.slots[slot])
    run.counters[op.counter] += 1
    stopped = (op.until >= 0 and run.slots[op.until]) or (
        op.until_edge >= 0 and run.request.consuming(op.until_edge).ended
    )
    if not stopped and run.counters[op.counter] < run.counters[op.bound]:
        return op.body
    for slot, gathered in op.gather:
        run.slots[slot] = run.slots[gathered]
    if op.dynamic:
        run.how = UNTIL if stopped else AT_MOST
    return op.exit
