"""What a request would do: its state machine run with assumed outcomes, without weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from mstar_core.errors import SpecError
from mstar_core.spec.graph import DynamicLoop, Element, runs
from mstar_core.spec.machine import AT_MOST, DONE, UNTIL, RequestView, Start, Transition, WalkEnded
from mstar_core.spec.model import ModelSpec

MOST_WALKS = 10_000
"""A trace that starts more walks than this is taken to never end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWalk:
    """One walk of a trace: its partition, the nodes it runs, which inputs it takes, and how it is assumed to end."""

    walk: str
    partition: str
    nodes: tuple[str, ...]
    take: Mapping[str, int]
    how: str


@dataclass(frozen=True, slots=True)
class Trace:
    """The walks in the order in which they are started, and the finish reason."""

    walks: tuple[TracedWalk, ...]
    end: str


def trace(spec: ModelSpec, request: RequestView, how: Mapping[str, str] | None = None) -> Trace:
    """Follow a request: flags are assumed false, and loops end by their stop signal unless `how` says otherwise.

    Raises `SpecError` when the machine gets stuck or goes on for ever.
    """
    walks: list[TracedWalk] = []
    transition = spec.machine.start(request)
    running: deque[TracedWalk] = deque()
    while True:
        for start in transition.start:
            running.append(_traced(spec, start, how or {}))
            walks.append(running[-1])
        if transition.end is not None:
            return Trace(tuple(walks), transition.end)
        if not running or len(walks) > MOST_WALKS:
            problem = "starts nothing and does not end" if not running else f"started {MOST_WALKS} walks"
            raise SpecError(f"the state machine of {spec.card.name!r}", [f"{problem} after {walks[-1].walk!r}"])
        transition = _advance(spec, transition, _next(spec, running))


def _next(spec: ModelSpec, running: deque[TracedWalk]) -> TracedWalk:
    """The walk that ends next: one whose streams' producers have ended, so producers before consumers."""
    producers = {edge.source_node for edge in spec.edges}
    chosen = next((walk for walk in running if producers & set(walk.nodes)), running[0])
    running.remove(chosen)
    return chosen


def _advance(spec: ModelSpec, transition: Transition, ended: TracedWalk) -> Transition:
    flags = dict.fromkeys(spec.walk(ended.walk).reports, False)
    return spec.machine.advance(transition.state, WalkEnded(walk=ended.walk, how=ended.how, flags=flags))


def _traced(spec: ModelSpec, start: Start, how: Mapping[str, str]) -> TracedWalk:
    walk = spec.walk(start.walk)
    nodes = tuple(dict.fromkeys(run.node for run in runs(walk.body)))
    assumed = how.get(walk.name, UNTIL if _ends_in_loop(walk.body) else DONE)
    if assumed not in (DONE, UNTIL, AT_MOST):
        raise SpecError(f"walk {walk.name!r}", [f"{assumed!r} is no way to end: use {DONE}, {UNTIL} or {AT_MOST}"])
    return TracedWalk(walk=walk.name, partition=walk.partition, nodes=nodes, take=dict(start.take), how=assumed)


def _ends_in_loop(element: Element) -> bool:
    return isinstance(element, DynamicLoop)
