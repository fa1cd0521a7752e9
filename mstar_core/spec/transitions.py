"""What a state machine may ask for: a transition is checked before anything of it is done.

The Conductor checks every transition of every request, `mstar check` and `mstar trace` those that they assume.
"""

from __future__ import annotations

from collections.abc import Collection

from mstar_core.errors import nearest
from mstar_core.spec.machine import RequestView, Start, Transition
from mstar_core.spec.model import ModelSpec


def check_transition(transition: Transition, view: RequestView, running: Collection[str], spec: ModelSpec) -> None:
    """Raise `ValueError` for what a state machine cannot mean while the walks `running` run for the request of `view`.

    A transition must name walks and partitions that there are, start no walk in a partition that is busy, take only
    tensors that the request brought, and end the request exactly when nothing runs.
    """
    if not isinstance(transition, Transition):
        raise ValueError(f"it returned a {type(transition).__name__!r} object; a Transition was expected")
    partitions = {walk.name: walk.partition for walk in spec.walks}
    busy = {partitions[walk]: walk for walk in running}
    for start in transition.start:
        _check_start(start, partitions, busy)
        _check_take(start, view)
        busy[partitions[start.walk]] = start.walk
    for partition in transition.finish:
        if partition not in spec.partitions:
            hint = nearest(partition, spec.partitions)
            raise ValueError(f"it finished partition {partition!r}, which the model does not have{hint}")
    _check_rest(transition, sorted(busy.values()))


def _check_start(start: Start, partitions: dict[str, str], busy: dict[str, str]) -> None:
    if start.walk not in partitions:
        hint = nearest(start.walk, partitions)
        raise ValueError(f"it started walk {start.walk!r}, which the model does not have{hint}")
    partition = partitions[start.walk]
    if partition in busy:
        raise ValueError(
            f"it started walk {start.walk!r} while {busy[partition]!r} is running in the same partition {partition!r}"
        )


def _check_take(start: Start, view: RequestView) -> None:
    for name, index in start.take.items():
        brought = len(view.inputs.get(name, ()))
        if not 0 <= index < brought:
            hint = "" if name in view.inputs else nearest(name, view.inputs)
            what = f"input {name!r} number {index}"
            raise ValueError(f"it started walk {start.walk!r} with {what}; the request brought {brought}{hint}")


def _check_rest(transition: Transition, running: list[str]) -> None:
    if transition.end is not None and running:
        named = ", ".join(map(repr, running))
        raise ValueError(f"it ended the request with {transition.end!r} while walk {named} is running")
    if transition.end is None and not running:
        raise ValueError("it neither started a walk nor ended the request, and nothing runs: the request is stuck")
