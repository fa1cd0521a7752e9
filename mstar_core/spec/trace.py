"""What one request would do: its state machine run with assumed events, without weights. Called by `mstar trace`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mstar_core.errors import ConfigurationError, SpecError, nearest
from mstar_core.spec.course import Course, Courses
from mstar_core.spec.endings import bound, endings
from mstar_core.spec.graph import DynamicLoop, Element, Loop, Parallel, Sequential, StreamEnd, Walk, runs
from mstar_core.spec.machine import AT_MOST, DONE, UNTIL, RequestView, Start, WalkEnded
from mstar_core.spec.model import ModelSpec

MOST_WALKS = 10_000
"""A trace that starts more walks than this is taken to never end."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is assumed against the default: how walks end, and (walk, flag) pairs that are raised.

    By default a walk ends by its stop signal where it has one, and no other flag is raised.
    """

    how: Mapping[str, str] = field(default_factory=dict)
    raised: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class TracedLoop:
    """A loop of a walk: the nodes in it, how often it runs at most (None: as often as it takes), what stops it."""

    nodes: tuple[str, ...]
    at_most: int | None
    until: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWalk:
    """One walk of a trace: nodes with their engines, loops, which inputs it takes, and how it is assumed to end."""

    walk: str
    partition: str
    nodes: Mapping[str, str]
    loops: tuple[TracedLoop, ...]
    take: Mapping[str, int]
    ends: str


@dataclass(frozen=True, slots=True)
class Trace:
    """The walks in the order in which they are started, and the finish reason."""

    walks: tuple[TracedWalk, ...]
    end: str


def assumptions(spec: ModelSpec, given: tuple[str, ...]) -> Assumptions:
    """Read `WALK=HOW` and `WALK.FLAG`; raises `ConfigurationError` for what the model has not."""
    how: dict[str, str] = {}
    raised: set[tuple[str, str]] = set()
    walks = {walk.name: walk for walk in spec.walks}
    for text in given:
        name, ways, way = text.partition("=")
        name, dot, flag = (name, "", "") if ways else text.partition(".")
        if name not in walks:
            raise ConfigurationError(
                f"--assume {text}: no walk {name!r}{nearest(name, walks)}; there are {', '.join(walks)}"
            )
        if ways and way in (DONE, UNTIL, AT_MOST):
            how[name] = way
        elif dot and flag in walks[name].reports:
            raised.add((name, flag))
        else:
            reports = [f"{name}.{each}" for each in walks[name].reports]
            raise ConfigurationError(
                f"--assume {text}: use {', '.join([*reports, *(f'{name}={way}' for way in (DONE, UNTIL, AT_MOST))])}"
            )
    return Assumptions(how, frozenset(raised))


def trace(spec: ModelSpec, request: RequestView, assumed: Assumptions | None = None) -> Trace:
    """Follow a request to its end; raises `SpecError` when its machine is at fault, gets stuck, or goes on for ever."""
    courses, assumed = Courses(spec, request), assumed or Assumptions()
    walks: list[TracedWalk] = []
    course, transition = courses.start()
    while True:
        walks += [_traced(spec, request, start, assumed) for start in transition.start]
        if course.end is not None:
            return Trace(tuple(walks), course.end)
        if len(walks) > MOST_WALKS:
            raise SpecError(f"the state machine of {spec.card.name!r}", [f"it has started {MOST_WALKS} walks"])
        course, transition = courses.advance(course, _next(spec, courses, course, assumed))


def _next(spec: ModelSpec, courses: Courses, course: Course, assumed: Assumptions) -> WalkEnded:
    """The event of the first running walk that can end now."""
    possible = list(courses.events(course))
    for name in course.running:
        event = _assumed(spec.walk(name), courses.request, assumed)
        if event in possible:
            return event
    running = ", ".join(map(repr, course.running))
    raise SpecError(f"the state machine of {spec.card.name!r}", [f"the request is stuck: {running} cannot end"])


def _assumed(walk: Walk, request: RequestView, assumed: Assumptions) -> WalkEnded:
    """Of the events that can end a walk, the one that agrees best with what is assumed."""

    def agreement(event: WalkEnded) -> tuple[bool, bool, int]:
        agreeing = sum(raised == ((walk.name, flag) in assumed.raised) for flag, raised in event.flags.items())
        raises = any(event.flags[flag] for name, flag in assumed.raised if name == walk.name)
        return event.how == assumed.how.get(walk.name), raises or event.how == UNTIL, agreeing

    events = list(endings(walk, request.params))
    best = max(events, key=agreement)
    wanted = assumed.how.get(walk.name, best.how)
    if best.how != wanted:
        ways = ", ".join(dict.fromkeys(event.how for event in events))
        raise ConfigurationError(f"walk {walk.name!r} cannot end by {wanted!r} in this request; it can by {ways}")
    return best


def _traced(spec: ModelSpec, request: RequestView, start: Start, assumed: Assumptions) -> TracedWalk:
    walk = spec.walk(start.walk)
    return TracedWalk(
        walk=walk.name,
        partition=walk.partition,
        nodes={run.node: spec.node(run.node).engine for run in runs(walk.body)},
        loops=tuple(_loops(walk.body, request.params)),
        take=dict(start.take),
        ends=_assumed(walk, request, assumed).how,
    )


def _loops(element: Element, params: Mapping[str, Any]) -> Iterator[TracedLoop]:
    """The loops of a walk with their bounds, outer before inner."""
    match element:
        case Sequential(parts) | Parallel(parts):
            for part in parts:
                yield from _loops(part, params)
        case Loop() | DynamicLoop():
            nodes = tuple(dict.fromkeys(run.node for run in runs(element.body)))
            if isinstance(element, Loop):
                yield TracedLoop(nodes, bound(element.times, params), None)
            else:
                at_most = None if element.at_most is None else bound(element.at_most, params)
                until = element.until
                stop = f"end of {until.node}.{until.port}" if isinstance(until, StreamEnd) else until
                yield TracedLoop(nodes, at_most, stop)
            yield from _loops(element.body, params)
