"""One request as the Conductor sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mstar_core.spec.machine import InputShape, RequestView
from mstar_core.wire.messages import Submit


@dataclass(slots=True, eq=False)
class Request:
    """A request from `Submit` to its one terminal event, and on until its workers have freed it.

    `state` is the state machine's; `walks` are the walks running now; `ended` says that the terminal event was sent.
    `route` names the worker of each group of its model's layout; `open_on` are the workers that still hold it.
    """

    submit: Submit
    demand: Mapping[str, int]
    view: RequestView
    deadline: float | None
    key: int = 0
    state: Any = None
    walks: set[str] = field(default_factory=set)
    route: tuple[str, ...] = ()
    open_on: set[str] = field(default_factory=set)
    emitted: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    admitted: bool = False
    ended: bool = False


def view_of(submit: Submit) -> RequestView:
    """What the state machine sees of a request."""
    shapes = {name: tuple(InputShape(ref.dtype, ref.shape) for ref in refs) for name, refs in submit.inputs.items()}
    return RequestView(params=submit.params, inputs=shapes, outputs=frozenset(submit.outputs))
