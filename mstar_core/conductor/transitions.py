"""What a state machine may ask for: a transition is checked before anything of it is done."""

from __future__ import annotations

from mstar_core.conductor.requests import Request
from mstar_core.errors import nearest
from mstar_core.spec.machine import Start, Transition
from mstar_core.spec.model import ModelSpec


def check_transition(transition: Transition, request: Request, spec: ModelSpec) -> None:
    """Raise `ValueError` for what the request's state machine cannot mean.

    It must name walks and partitions that there are, start no walk that runs, take only tensors that the request
    brought, and end the request exactly when nothing runs.
    """
    running = set(request.walks)
    for start in transition.start:
        _check_start(start, request, running, spec)
        running.add(start.walk)
    for partition in transition.finish:
        if partition not in spec.partitions:
            hint = nearest(partition, spec.partitions)
            raise ValueError(f"it finished the partition {partition!r}, which the model does not have{hint}")
    if transition.end is not None and running:
        raise ValueError(f"it ended the request with {transition.end!r} while {', '.join(sorted(running))} runs")
    if transition.end is None and not running:
        raise ValueError("it neither started a walk nor ended the request, and nothing runs")


def _check_start(start: Start, request: Request, running: set[str], spec: ModelSpec) -> None:
    walks = [walk.name for walk in spec.walks]
    if start.walk not in walks:
        raise ValueError(
            f"it started the walk {start.walk!r}, which the model does not have{nearest(start.walk, walks)}"
        )
    if start.walk in running:
        raise ValueError(f"it started the walk {start.walk!r}, which is running")
    for name, index in start.take.items():
        brought = len(request.view.inputs.get(name, ()))
        if not 0 <= index < brought:
            raise ValueError(f"walk {start.walk!r} takes {name!r} number {index}; the request brought {brought}")
