"""One request's course through a model, as the Conductor would steer it, with assumed events and without tensors.

`mstar check` explores every course (`spec/explore.py`), `mstar trace` follows one (`spec/trace.py`). What the runtime
would fail on is a `SpecError` here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mstar_core.errors import SpecError
from mstar_core.spec.endings import endings, stream_end
from mstar_core.spec.flow import produced_signals
from mstar_core.spec.graph import DynamicLoop, Element, Loop, Node, Parallel, Run, Sequential, Walk, runs
from mstar_core.spec.machine import UNTIL, RequestView, Transition, WalkEnded
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.transitions import check_transition


@dataclass(frozen=True, slots=True)
class Course:
    """Where a request stands: the machine's state, walks that run and that have run, partitions that are finished."""

    state: Any = None
    running: tuple[str, ...] = ()
    ran: frozenset[str] = frozenset()
    finished: frozenset[str] = frozenset()
    end: str | None = None


class Courses:
    """The courses of one request of one model."""

    def __init__(self, spec: ModelSpec, request: RequestView) -> None:
        self.spec = spec
        self.request = request
        self.walks = {walk.name: walk for walk in spec.walks}
        self._produced = {name: produced_signals(spec, walk) for name, walk in self.walks.items()}
        self._needed = {name: needed_signals(spec, walk) for name, walk in self.walks.items()}
        self._endings = {name: tuple(endings(walk, request.params)) for name, walk in self.walks.items()}

    def start(self) -> tuple[Course, Transition]:
        """The first course and the transition to it; raises `SpecError`."""
        try:
            transition = self.spec.machine.start(self.request)
        except Exception as error:  # isolation boundary: a plugin's state machine
            raise self._wrong(f"start() raised {type(error).__name__}: {error}") from error
        return self._apply(Course(), transition)

    def advance(self, course: Course, event: WalkEnded) -> tuple[Course, Transition]:
        """The course after a walk has ended, and the transition to it; raises `SpecError`."""
        left = tuple(walk for walk in course.running if walk != event.walk)
        try:
            transition = self.spec.machine.advance(course.state, event)
        except Exception as error:  # isolation boundary: a plugin's state machine
            raise self._wrong(f"advance() raised {type(error).__name__}: {error}") from error
        return self._apply(replace(course, running=left, ran=course.ran | {event.walk}), transition)

    def events(self, course: Course) -> Iterator[WalkEnded]:
        """What may happen next. A walk that ends with its stream can do so once the stream's producer is finished."""
        for name in course.running:
            waits = self.waits_for(name) - course.finished
            yield from (event for event in self._endings[name] if event.how != UNTIL or not waits)

    def waits_for(self, walk: str) -> frozenset[str]:
        """The partitions that must be finished before the walk's stop signal can come."""
        end = stream_end(self.walks[walk])
        if end is None:
            return frozenset()
        sources = {
            edge.source_node
            for edge in self.spec.edges
            if (edge.target_node, edge.target_port) == (end.node, end.port) and not edge.outlives
        }
        producing = [walk for walk in self.spec.walks if sources & {run.node for run in runs(walk.body)}]
        return frozenset(walk.partition for walk in producing)

    def _apply(self, course: Course, transition: Transition) -> tuple[Course, Transition]:
        try:
            check_transition(transition, self.request, course.running, self.spec)
        except ValueError as error:
            raise self._wrong(str(error)) from None
        for start in transition.start:
            self._check_start(course, self.walks[start.walk])
            course = replace(course, running=(*course.running, start.walk))
        finished = course.finished | frozenset(transition.finish)
        course = replace(course, state=transition.state, finished=finished, end=transition.end)
        self._check_state(course)
        return course, transition

    def _check_start(self, course: Course, walk: Walk) -> None:
        """What only a course knows: which partitions are finished, and which signals there are."""
        if walk.partition in course.finished:
            raise self._wrong(f"it started walk {walk.name!r} in partition {walk.partition!r}, which it has finished")
        brought = {name for name, shapes in self.request.inputs.items() if shapes}
        made = {name for other in course.ran for name in self._made_for(walk, other)}
        missing = sorted(self._needed[walk.name] - brought - made)
        if missing:
            raise self._wrong(
                f"it started walk {walk.name!r}, which consumes {', '.join(map(repr, missing))}: the request does not "
                f"bring that and no walk that ran before in partition {walk.partition!r} produces it"
            )

    def _made_for(self, walk: Walk, other: str) -> frozenset[str]:
        return self._produced[other] if self.walks[other].partition == walk.partition else frozenset()

    def _check_state(self, course: Course) -> None:
        try:
            hash(course)
        except TypeError:
            kind = type(course.state).__name__
            raise self._wrong(f"its state is a {kind}, which cannot be hashed; use a frozen dataclass") from None

    def _wrong(self, problem: str) -> SpecError:
        return SpecError(f"the state machine of {self.spec.card.name!r}", [problem])


def needed_signals(spec: ModelSpec, walk: Walk) -> frozenset[str]:
    """The signals that must be there before a walk starts: consumed by it, before any of its own runs makes them."""
    streamed = frozenset((edge.target_node, edge.target_port) for edge in spec.edges)
    needed: set[str] = set()
    _collect({node.name: node for node in spec.nodes}, streamed, walk.body, set(), needed)
    return frozenset(needed)


def _collect(
    nodes: Mapping[str, Node],
    streamed: frozenset[tuple[str, str]],
    element: Element,
    made: set[str],
    needed: set[str],
) -> None:
    """Walk through an element in order; `made` grows by what its runs produce, `needed` by what they lack."""
    match element:
        case Run(name):
            inputs, outputs = dict(element.inputs), dict(element.outputs)
            for port in nodes[name].inputs:
                signal = inputs.get(port.name, port.name)
                if not port.sparse and (name, port.name) not in streamed and signal not in made:
                    needed.add(signal)
            made |= {outputs.get(port.name, port.name) for port in nodes[name].outputs}
        case Sequential(steps):
            for step in steps:
                _collect(nodes, streamed, step, made, needed)
        case Parallel(branches):
            each_made = [set(made) for _ in branches]
            for branch, its_own in zip(branches, each_made, strict=True):
                _collect(nodes, streamed, branch, its_own, needed)
            made.update(*each_made)
        case Loop() | DynamicLoop():
            _collect(nodes, streamed, element.body, made, needed)
