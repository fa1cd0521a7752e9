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

    A request is admitted when its whole demand fits beside the demands already admitted, so an admitted request never
    waits for ever for pages.
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
    reserved: dict[str, int] = field(default_factory=dict)

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
        if len(self.queue) >= self.waiting and not self.has_room_for(None):
            name, waiting = self.spec.card.name, len(self.queue)
            raise Overloaded(f"model {name!r} runs {self.admitted} requests and {waiting} wait", retry_after=1.0)

    def has_room_for(self, request: Request | None) -> bool:
        """Whether a request may start now (None: whether the running limit allows any)."""
        if self.admitted >= self.running or (request is None and self.queue):
            return False
        demand = request.demand if request else {}
        return all(
            self.reserved.get(node, 0) + tokens <= self.capacity[node]
            for node, tokens in demand.items()
            if node in self.capacity
        )

    def admit(self, request: Request) -> None:
        """Count a request in."""
        self.admitted += 1
        for node, tokens in request.demand.items():
            self.reserved[node] = self.reserved.get(node, 0) + tokens

    def release(self, request: Request) -> None:
        """Count it out, once the worker has freed what it held."""
        self.admitted -= 1
        for node, tokens in request.demand.items():
            self.reserved[node] -= tokens
