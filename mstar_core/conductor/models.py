"""What the Conductor knows of each model it serves: limits, who waits, and how much KV its workers have."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mstar_core.conductor.requests import Request
from mstar_core.errors import InvalidRequest, Overloaded
from mstar_core.spec.layout import Layout, layout_of
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.placement import ModelPlace, Placement

READY = "ready"
"""The state of a model that can be asked."""


@dataclass(slots=True, eq=False)
class ServedModel:
    """One model: at most `limits.running` requests at once and `limits.waiting` in the queue.

    `state` is `ready`, or says why the model cannot be asked. `capacity` is KV tokens by node. A request whose demand
    exceeds a whole pool is refused at once. Beyond that admission does not count pages: engines let calls wait and park
    requests, and the oldest one always gets on.
    """

    spec: ModelSpec
    layout: Layout
    limits: ModelPlace
    state: str = "loading"
    capacity: Mapping[str, int] = field(default_factory=dict)
    queue: deque[Request] = field(default_factory=deque)
    admitted: int = 0

    @property
    def name(self) -> str:
        """The model's name."""
        return self.spec.card.name

    def refuse_impossible(self, request: Request) -> None:
        """Raise `InvalidRequest` for a request that could not run even alone."""
        for node, tokens in request.demand.items():
            capacity = self.capacity.get(node)
            if capacity is not None and tokens > capacity:
                raise InvalidRequest(
                    f"the request needs up to {tokens} KV tokens in node {node!r} of model {self.name!r}; "
                    f"its pool holds {capacity}. Ask for less output, send less input, or serve with a larger pool"
                )

    def refuse_overflow(self) -> None:
        """Raise `Overloaded` when the queue is full."""
        if not self.has_room and len(self.queue) >= self.limits.waiting:
            waiting = len(self.queue)
            raise Overloaded(f"model {self.name!r} runs {self.admitted} requests and {waiting} wait", retry_after=1.0)

    @property
    def has_room(self) -> bool:
        """Whether one more request may run."""
        return self.admitted < self.limits.running


def served_models(specs: Sequence[ModelSpec], placement: Placement) -> dict[str, ServedModel]:
    """The models by name, placed."""
    return {
        spec.card.name: ServedModel(spec, layout_of(spec, placement), placement.model(spec.card.name)) for spec in specs
    }
