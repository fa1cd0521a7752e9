"""What becomes of batches that have run: outcomes go to walks, failed batches are taken apart, void runs undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mstar_core.engines.base import Outputs
from mstar_core.worker.models import Flight, ReadyQueue
from mstar_core.worker.requests import RequestRun
from mstar_core.worker.walks import Task


class Settling(Protocol):
    """What happens next, as the worker decides."""

    def completed(self, task: Task, outputs: Outputs) -> None:
        """A run has given its outputs, or the exception that it alone raised."""
        ...

    def dropped(self, task: Task) -> None:
        """A run that turned out to be void has been undone: its walk goes on behind its loop."""
        ...

    def free(self, request: RequestRun) -> None:
        """A request that is closing has nothing in flight any more."""
        ...


class Batches:
    """Settles batches in the order in which they ran."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling

    def settle(self, flight: Flight, queue: ReadyQueue) -> None:
        """A batch of a queue has run. A failed one waits for the batch started ahead on it."""
        queue.in_flight.remove(flight)
        if queue.failed is not None:
            failed, queue.failed = queue.failed, None
            self._undo(flight, queue, failed)
            self._retry(failed, queue)
        elif flight.error is not None and queue.in_flight:
            queue.failed = flight
        elif flight.error is not None:
            self._retry(flight, queue)
        else:
            self._complete(flight, queue)

    def _complete(self, flight: Flight, queue: ReadyQueue) -> None:
        """Drop what is void, and tell the walks of the rest.

        A run of a closing request has no effect either, but it is not dropped: a later one, which was started ahead on
        it, may still be in flight.
        """
        tasks, engine = tasks_of(flight), flight.engine
        for task in tasks:
            if task.void:
                engine.drop(flight.batch, task)
        outcomes = engine.finish(flight.batch)
        for task, outcome in zip(tasks, outcomes, strict=True):
            request = task.run.request
            request.in_flight -= 1
            if task.void or request.closing:
                self._dropped(task)
            elif outcome is None:
                queue.tasks.appendleft(task)
            else:
                self._settling.completed(task, outcome)

    def _dropped(self, task: Task) -> None:
        """A run without effect is over: its request is closing, or its walk goes on behind the loop."""
        request = task.run.request
        _uncount(task)
        if not request.closing:
            self._settling.dropped(task)
        elif not request.in_flight:
            self._settling.free(request)

    def _undo(self, flight: Flight, queue: ReadyQueue, before: Flight) -> None:
        """Take a batch back whose predecessor failed: runs started ahead vanish, the others are ready again."""
        started_ahead = {task.ahead for task in tasks_of(before)}
        for task in tasks_of(flight):
            flight.engine.drop(flight.batch, task)
            task.run.request.in_flight -= 1
            if task in started_ahead:
                _uncount(task)
            else:
                self._requeue(queue, task)
        for task in tasks_of(before):
            task.ahead = None

    def _retry(self, flight: Flight, queue: ReadyQueue) -> None:
        """A batch raised.

        Its calls run again one by one, so that only the one at fault fails; a lone one has failed.
        """
        assert flight.error is not None
        tasks = tasks_of(flight)
        for task in tasks:
            flight.engine.drop(flight.batch, task)
        if len(tasks) == 1 and not tasks[0].run.request.closing:
            tasks[0].run.request.in_flight -= 1
            self._settling.completed(tasks[0], flight.error)
            return
        for task in reversed(tasks):
            task.run.request.in_flight -= 1
            task.solo = True
            self._requeue(queue, task)

    def _requeue(self, queue: ReadyQueue, task: Task) -> None:
        request = task.run.request
        if not request.closing:
            queue.tasks.appendleft(task)
        elif not request.in_flight:
            self._settling.free(request)


def tasks_of(flight: Flight) -> Sequence[Task]:
    """A batch's calls, which are the worker's tasks."""
    return flight.batch.calls  # type: ignore[return-value]


def _uncount(task: Task) -> None:
    """Take back what was counted when the task was queued."""
    task.request.runs -= 1
    for _, edge in task.op.pushes:
        task.run.request.producing(edge).release()
