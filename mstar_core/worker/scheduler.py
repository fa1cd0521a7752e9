"""Which ready queue runs next, and what its next batch holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mstar_core.engines.base import Row
from mstar_core.worker.models import Flight, ReadyQueue
from mstar_core.worker.walks import Task, WalkRun, rounds_left


class Scheduler:
    """Smooth weighted round robin over the queues that have work, and run-ahead within a queue.

    A queue has at most one batch in flight, so that requests that become ready meanwhile join its next batch; with
    `run_ahead` it may have a second one queued behind the first, holding the next round of the first one's loops.
    """

    def __init__(self, queues: Sequence[ReadyQueue], *, run_ahead: bool) -> None:
        self._queues = queues
        self._run_ahead = run_ahead

    def next(self) -> Flight | None:
        """The next batch to run, taken off its queue; None when nothing can run now."""
        eligible = [queue for queue in self._queues if self._may_run(queue)]
        while eligible:
            chosen = _next_in_turn(eligible)
            flight = self._collect(chosen)
            if flight is not None:
                return flight
            eligible.remove(chosen)
        return None

    def _may_run(self, queue: ReadyQueue) -> bool:
        if queue.failed is not None:
            return False
        if not queue.in_flight:
            return bool(queue.tasks)
        return self._run_ahead and len(queue.in_flight) == 1 and not queue.in_flight[0].batch.partial

    def _collect(self, queue: ReadyQueue) -> Flight | None:
        ahead = _next_rounds(queue.in_flight[0], queue) if queue.in_flight else {}
        calls = [*ahead, *_ready(queue)]
        if not calls or (queue.in_flight and not ahead):
            return None
        batch = queue.engine.collect(queue.queue.walk, calls, queue.limits)
        if batch is None:
            return None
        taken: set[Task] = set(batch.calls)  # type: ignore[arg-type]
        for task, before in ahead.items():
            if task in taken:
                _start_ahead(task, before)
        _take(queue, taken.difference(ahead))
        flight = Flight(queue.engine, batch, queue)
        queue.in_flight.append(flight)
        return flight


def _next_in_turn(queues: Sequence[ReadyQueue]) -> ReadyQueue:
    """Every queue gains its weight, the richest pays for all: shares follow the weights without bursts."""
    for queue in queues:
        queue.credit += queue.weight
    chosen = max(queues, key=lambda queue: queue.credit)
    chosen.credit -= sum(queue.weight for queue in queues)
    return chosen


def _ready(queue: ReadyQueue) -> list[Task]:
    """The tasks that the next batch may draw on; one that must run alone comes alone."""
    tasks = queue.tasks
    if tasks and tasks[0].solo:
        return [] if queue.in_flight else [tasks[0]]
    ready: list[Task] = []
    for task in tasks:
        if task.solo or len(ready) == queue.limits.requests:
            break
        ready.append(task)
    return ready


def _next_rounds(flight: Flight, queue: ReadyQueue) -> dict[Task, Task]:
    """The next rounds of the loops whose present round is in flight, as far as they are sure to be possible."""
    calls: Iterable[Task] = flight.batch.calls  # type: ignore[assignment]
    return {_next_round(task, flight, index): task for index, task in enumerate(calls) if _may_run_ahead(task, queue)}


def _may_run_ahead(task: Task, queue: ReadyQueue) -> bool:
    op, run = task.op, task.run
    if op.ahead is None or task.void or task.solo or run.request.closing:
        return False
    assert isinstance(run, WalkRun), "only a loop's home knows its next round"
    if rounds_left(run, op.ahead) < 1 or (run.program.emits and not run.request.outlet.room()):
        return False
    made = {slot: port for port, slot in op.outputs}
    if any(slot in made and made[slot] not in queue.engine.run_ahead for _, slot in op.inputs):
        return False
    return all(run.request.producing(edge).room() for _, edge in op.pushes)


def _next_round(task: Task, flight: Flight, index: int) -> Task:
    """The call that follows `task`: what it carries over are rows of the batch in flight."""
    op, run = task.op, task.run
    assert isinstance(run, WalkRun)
    made = {slot: port for port, slot in op.outputs}
    inputs = {
        port: Row(flight.batch.output, made[slot], index) if slot in made else run.slots[slot]
        for port, slot in op.inputs
    }
    return Task(request=task.request, walk=task.walk, inputs=inputs, step=task.request.runs, run=run, op=op)


def _start_ahead(task: Task, before: Task) -> None:
    before.ahead = task
    task.request.runs += 1
    task.run.request.in_flight += 1
    for _, edge in task.op.pushes:
        task.run.request.producing(edge).reserve()


def _take(queue: ReadyQueue, taken: set[Task]) -> None:
    """Take tasks off the queue; they stand near its front."""
    kept: list[Task] = []
    left = len(taken)
    while left:
        task = queue.tasks.popleft()
        if task in taken:
            task.run.request.in_flight += 1
            left -= 1
        else:
            kept.append(task)
    queue.tasks.extendleft(reversed(kept))
