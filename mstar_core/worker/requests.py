"""One request on one worker, from `Open` to `Closed`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mstar_core.engines.base import NodeRequest
from mstar_core.errors import InvalidRequest
from mstar_core.spec.content import PROGRESS
from mstar_core.spec.graph import Count
from mstar_core.wire.messages import Address, Open, StartWalk
from mstar_core.worker.outlet import Outlet
from mstar_core.worker.streams import Producing, Stream, StreamSender
from mstar_core.worker.walks import Task, WalkRun

if TYPE_CHECKING:
    from mstar_core.worker.models import LoadedModel
    from mstar_core.worker.moves import Arrivals
    from mstar_core.worker.post import Post

_UNBOUNDED = 2**62
"""The bound of a loop that only its stream ends."""


class RequestRun:
    """What a worker keeps of a request: the signals of the partitions that it walks, the ends of streams that are here,
    and what its nodes hold. Nothing starts for a request that is `closing`.

    inputs: the request's tensors by name; None while they are on their way from another host, and `starts` wait.
    opened: the nodes that hold the request.
    remote: the (node, walk) pairs that other workers run for it, by number.
    calls: the runs that other workers were asked for, by number.
    located: where each node is that moves between workers.
    """

    __slots__ = (
        "arrivals",
        "calls",
        "closing",
        "frontend",
        "id",
        "in_flight",
        "inputs",
        "key",
        "located",
        "model",
        "nodes",
        "opened",
        "outlet",
        "outputs",
        "params",
        "remote",
        "route",
        "senders",
        "slots",
        "starts",
        "streams",
        "ticket",
    )

    def __init__(self, message: Open, model: LoadedModel, post: Post) -> None:
        self.key = message.key
        self.id = message.request
        self.model = model
        self.params = message.params
        self.inputs: Mapping[str, list[Any]] | None = None
        self.starts: list[StartWalk] = []
        self.outputs = frozenset(message.outputs) | {PROGRESS}
        self.frontend = message.frontend
        self.ticket = message.ticket
        self.route = message.route
        self.nodes = {node.name: NodeRequest(message.key, message.params, message.seed) for node in model.spec.nodes}
        self.slots = {partition: [None] * count for partition, count in model.compiled.slots.items()}
        self.remote = frozenset(
            queue.index for queue in model.compiled.queues if model.runner(queue.index, message.route) != post.address
        )
        self.streams: dict[int, Stream] = {}
        self.senders: dict[int, StreamSender] = {}
        self._connect(post)
        self.outlet = Outlet()
        self.calls: dict[int, tuple[WalkRun, Task]] = {}
        self.located: dict[str, Address] = {}
        self.arrivals: dict[str, Arrivals] = {}
        self.in_flight = 0
        self.closing = False
        self.opened: list[str] = []

    def producing(self, edge: int) -> Producing:
        """The producer's end of a stream that a partition of this worker feeds."""
        sender = self.senders.get(edge)
        return self.streams[edge] if sender is None else sender

    def consuming(self, edge: int) -> Stream:
        """The buffer of a stream that a partition of this worker reads."""
        return self.streams[edge]

    def count(self, times: Count | None) -> int:
        """A loop's bound for this request."""
        if times is None:
            return _UNBOUNDED
        if isinstance(times, int):
            return times
        given = self.params[times.name]
        if given is None:
            raise InvalidRequest(f"{times.name!r} must be given: it says how often a loop runs", param=times.name)
        return int(given) + times.offset

    def _connect(self, post: Post) -> None:
        """Make the ends of streams that are on this worker."""
        for index, edge in enumerate(self.model.spec.edges):
            producer = self.model.home_of_node(edge.source_node, self.route)
            consumer = self.model.home_of_node(edge.target_node, self.route)
            if consumer == post.address:
                near = producer == consumer
                self.streams[index] = Stream(edge, None if near else post.creditor(self.key, index, producer))
            elif producer == post.address:
                self.senders[index] = StreamSender(edge, post.stream(self.key, index, consumer))
