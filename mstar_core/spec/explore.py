"""Explores a state machine: every request that a model's declaration allows, every way in which its walks can end.

Breadth first over courses (`spec/course.py`), for every combination of optional inputs, wanted outputs and the
parameters that the machine reads. Called by `mstar check`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mstar_core.errors import SpecError
from mstar_core.spec.course import Course, Courses
from mstar_core.spec.graph import DynamicLoop, Element, Loop, Parallel, Param, RequestInput, Sequential
from mstar_core.spec.machine import InputShape, RequestView, WalkEnded
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.params import Parameter

MOST_COURSES = 5_000
"""Courses looked at for one request: far more than a machine that counts what a request brings has."""

MOST_REQUESTS = 1_000
"""Beyond this, parameters are varied one at a time and not in combination with inputs and outputs."""

_AXIS = 2
"""The size given to an axis whose size is a symbol."""

_PATH = 6
"""The last events of a path that a problem shows."""


@dataclass(slots=True)
class _Findings:
    """Problems, each with the request and path that showed it first, and the walks that were started."""

    problems: dict[str, str] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)


def explore(spec: ModelSpec) -> list[str]:
    """What is wrong with the machine of a valid `spec`: faults, requests that never end, walks that can never run."""
    findings = _Findings()
    for request in requests(spec):
        _Search(Courses(spec, request), findings).run()
    problems = [f"{problem} ({where})" for problem, where in findings.problems.items()]
    for walk in spec.walks:
        if walk.name not in findings.started:
            problems.append(f"{walk.where}: walk {walk.name!r} can never run: no request makes the machine start it")
    return problems


class _Search:
    """Breadth first over the courses of one request."""

    def __init__(self, courses: Courses, findings: _Findings) -> None:
        self._courses = courses
        self._findings = findings
        self._paths: dict[Course, tuple[WalkEnded, ...]] = {}
        self._sources: dict[Course, list[Course]] = {}
        self._queue: deque[Course] = deque()
        self._settled: list[Course] = []

    def run(self) -> None:
        """Look at every course, then report those that cannot end."""
        try:
            first, _ = self._courses.start()
        except SpecError as error:
            self._report(error.problems[0], ())
            return
        if first.end is None:
            self._reach(first, ())
        while self._queue and len(self._paths) < MOST_COURSES:
            self._expand(self._queue.popleft())
        if self._queue and not self._settled:
            self._report(f"no end was found within {MOST_COURSES} steps: its requests never end", ())
        self._report_endless()

    def _expand(self, course: Course) -> None:
        path = self._paths[course]
        events = list(self._courses.events(course))
        if not events:
            self._report(self._stuck(course), path)
            self._settled.append(course)
        for event in events:
            try:
                following, _ = self._courses.advance(course, event)
            except SpecError as error:
                self._report(error.problems[0], (*path, event))
                self._settled.append(course)
                continue
            if following.end is not None:
                self._settled.append(course)
                continue
            self._sources.setdefault(following, []).append(course)
            self._reach(following, (*path, event))

    def _reach(self, course: Course, path: tuple[WalkEnded, ...]) -> None:
        if course not in self._paths:
            self._paths[course] = path
            self._queue.append(course)
            self._findings.started.update(course.running)

    def _report_endless(self) -> None:
        """Courses from which no end can be reached; one that was not looked at any more counts as ending."""
        ending = {*self._settled, *self._queue}
        frontier = list(ending)
        while frontier:
            for source in self._sources.get(frontier.pop(), ()):
                if source not in ending:
                    ending.add(source)
                    frontier.append(source)
        endless = next((course for course in self._paths if course not in ending), None)
        if endless is not None:
            walks = ", ".join(map(repr, endless.running))
            self._report(f"a request never ends once it runs {walks}: no event leads to its end", self._paths[endless])

    def _stuck(self, course: Course) -> str:
        waits = {name: sorted(self._courses.waits_for(name) - course.finished) for name in course.running}
        told = "; ".join(f"{name!r} waits for the end of partition {', '.join(of)}" for name, of in waits.items())
        return f"a request is stuck: {told}, which the machine never finishes (Transition.finish)"

    def _report(self, problem: str, path: Sequence[WalkEnded]) -> None:
        where = f"{_shown(self._courses.request)}; {_path(path)}"
        self._findings.problems.setdefault(f"the state machine: {problem}", where)


def requests(spec: ModelSpec) -> Iterator[RequestView]:
    """Requests that stand for all: optional inputs in and out, one or two of many, every set of outputs, parameters."""
    inputs = [dict(each) for each in itertools.product(*(_amounts(each) for each in spec.inputs))]
    wanted = [frozenset(each) for each in _subsets(spec.card.outputs)]
    defaults = {parameter.name: parameter.default for parameter in spec.config.parameters}
    varied = _varied(spec, [RequestView(params=defaults, inputs=i, outputs=o) for i in inputs for o in wanted])
    combined = list(itertools.islice(_combinations(defaults, varied), MOST_REQUESTS + 1))
    if len(combined) * len(inputs) * len(wanted) <= MOST_REQUESTS:
        for params, brought, outputs in itertools.product(combined, inputs, wanted):
            yield RequestView(params=params, inputs=brought, outputs=outputs)
        return
    for brought, outputs in itertools.product(inputs, wanted):
        yield RequestView(params=defaults, inputs=brought, outputs=outputs)
    for name, values in varied.items():
        for value in values:
            yield RequestView(params={**defaults, name: value}, inputs=inputs[-1], outputs=wanted[-1])


def _combinations(defaults: Mapping[str, Any], varied: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*varied.values()):
        yield {**defaults, **dict(zip(varied, values, strict=True))}


def _amounts(each: RequestInput) -> list[tuple[str, tuple[InputShape, ...]]]:
    """An input absent (if optional), present, and present twice (if it may be), in each of its shapes."""
    dtype = "float32" if each.dtype == "any" else each.dtype
    shapes = [
        InputShape(dtype, tuple(size if isinstance(size, int) else _AXIS for size in shape))
        for shape in (each.shape or (), *each.alternatives)
    ]
    counts = [0] * each.optional + [1] + [2] * each.many
    return [(each.name, brought) for count in counts for brought in itertools.product(shapes, repeat=count)]


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every subset but the empty one; the whole set last."""
    for size in range(1, len(names) + 1):
        yield from itertools.combinations(names, size)


class _Watched(dict[str, Any]):
    """Parameters that remember which of them were read."""

    def __init__(self, values: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(values)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        return super().get(name, default)


def _varied(spec: ModelSpec, views: Sequence[RequestView]) -> dict[str, list[Any]]:
    """Values to try for each parameter that the machine reads at the start, or that a loop counts by."""
    read = {count.name for walk in spec.walks for count in _counts(walk.body) if isinstance(count, Param)}
    for view in views:
        watched = RequestView(params=_Watched(view.params, read), inputs=view.inputs, outputs=view.outputs)
        try:
            spec.machine.start(watched)
        except Exception:  # isolation boundary: the search meets the same fault and reports it
            continue
    return {each.name: _values(each) for each in spec.config.parameters if each.name in read}


def _values(parameter: Parameter) -> list[Any]:
    """The default and the ends of the range."""
    match parameter.kind:
        case "bool":
            values: list[Any] = [False, True]
        case "str":
            values = list(parameter.choices)
        case _:
            values = [bound for bound in (parameter.minimum, parameter.maximum) if bound is not None]
    return list(dict.fromkeys([parameter.default, *values]))


def _counts(element: Element) -> Iterator[object]:
    match element:
        case Loop(body, times):
            yield times
            yield from _counts(body)
        case DynamicLoop(body, at_most):
            yield at_most
            yield from _counts(body)
        case Sequential(parts) | Parallel(parts):
            for part in parts:
                yield from _counts(part)


def _shown(request: RequestView) -> str:
    brought = ", ".join(f"{len(shapes)} {name}" for name, shapes in request.inputs.items() if shapes) or "nothing"
    return f"a request with {brought} for {', '.join(sorted(request.outputs))}"


def _path(path: Sequence[WalkEnded]) -> str:
    if not path:
        return "at its start"
    steps = ["..."] * (len(path) > _PATH) + [_event(event) for event in path[-_PATH:]]
    return "after " + ", ".join(steps)


def _event(event: WalkEnded) -> str:
    return " ".join([event.walk, event.how, *(name for name, raised in event.flags.items() if raised)])
