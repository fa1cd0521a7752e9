"""What the Conductor knows of each model it serves: limits, who waits, and how much KV is spoken for."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from mstar_core.conductor.requests import Request
from mstar_core.errors import InvalidRequest, Overloaded
from mstar_core.spec.model import ModelSpec


@dataclass(slots=True, eq=False)
class ServedModel:
    """One model: at most `running` requests at once and `waiting` in the queue; `capacity` is KV tokens by node.

    A request whose demand exceeds a whole pool is refused at once. Beyond that admission does not count pages:
    engines let calls wait and park requests, and the oldest one always gets on.
    """

    spec: ModelSpec
    running: int
    waiting: int
    worker: str = ""
    ready: bool = False
    reason: str = "loading"
    capacity: Mapping[str, int] = field(default_factory=dict)
    queue: deque[Request] = field(default_factory=deque)
    admitted: int = 0

    def refuse_impossible(self, request: Request) -> None:
        """Raise `InvalidRequest` for a request that could not run even alone."""
        for node, tokens in request.demand.items():
            capacity = self.capacity.get(node)
            if capacity is not None and tokens > capacity:
                raise InvalidRequest(
                    f"the request needs up to {tokens} KV tokens in node {node!r} of model {self.spec.card.name!r}; "
                    f"its pool holds {capacity}. Ask for less output, send less input, or serve with a larger pool"
                )

    def refuse_overflow(self) -> None:
        """Raise `Overloaded` when the queue is full."""
        if not self.has_room and len(self.queue) >= self.waiting:
            name, waiting = self.spec.card.name, len(self.queue)
            raise Overloaded(f"model {name!r} runs {self.admitted} requests and {waiting} wait", retry_after=1.0)

    @property
    def has_room(self) -> bool:
        """Whether one more request may run."""
        return self.admitted < self.running
