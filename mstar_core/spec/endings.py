"""How a walk can end: the events that its state machine may be told, for given request parameters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from mstar_core.spec.graph import Count, DynamicLoop, Element, Loop, Parallel, Param, Sequential, StreamEnd, Walk
from mstar_core.spec.machine import AT_MOST, DONE, UNTIL, WalkEnded


def endings(walk: Walk, params: Mapping[str, Any]) -> Iterator[WalkEnded]:
    """Every event with which the walk can end. The stop signal of its last loop, if reported, agrees with `how`."""
    loop = last_loop(walk.body)
    for how in _ways(walk.body, params) or (DONE,):
        for values in itertools.product((False, True), repeat=len(walk.reports)):
            flags = dict(zip(walk.reports, values, strict=True))
            stop = loop.until if loop is not None and isinstance(loop.until, str) else None
            if stop not in flags or flags[stop] == (how == UNTIL):
                yield WalkEnded(walk=walk.name, how=how, flags=flags)


def last_loop(element: Element) -> DynamicLoop | None:
    """The loop whose end is the walk's: the last `DynamicLoop`, or None where several end last or there is none."""
    match element:
        case DynamicLoop():
            return element
        case Loop(body):
            return last_loop(body)
        case Sequential(steps):
            return next((found for step in reversed(steps) if (found := last_loop(step))), None)
        case Parallel(branches):
            found_loops = [found for branch in branches if (found := last_loop(branch))]
            return found_loops[0] if len(found_loops) == 1 else None
    return None


def stream_end(walk: Walk) -> StreamEnd | None:
    """The stream that has to end before the walk can end by its stop signal."""
    loop = last_loop(walk.body)
    return loop.until if loop is not None and isinstance(loop.until, StreamEnd) else None


def bound(count: Count, params: Mapping[str, Any]) -> int:
    """How often a loop runs at most; a parameter that is not set counts as 1."""
    if isinstance(count, int):
        return count
    value = params.get(count.name)
    return 1 if value is None else int(value) + count.offset


def _ways(element: Element, params: Mapping[str, Any]) -> tuple[str, ...]:
    """`how` as an element leaves it; empty when it does not set it."""
    match element:
        case DynamicLoop(at_most=None):
            return (UNTIL,)
        case DynamicLoop(at_most=int() | Param() as count):
            return (UNTIL, AT_MOST) if bound(count, params) >= 1 else (AT_MOST,)
        case Loop(body, times):
            return _ways(body, params) if bound(times, params) >= 1 else (AT_MOST,)
        case Sequential(steps):
            return next((found for step in reversed(steps) if (found := _ways(step, params))), ())
        case Parallel(branches):
            return tuple(dict.fromkeys(how for branch in branches for how in _ways(branch, params)))
    return ()
