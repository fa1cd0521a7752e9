"""A model as a worker holds it: its compiled programs, an engine and ready queues for each node that it may run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mstar_core.engines.base import Batch, BatchLimits, Engine
from mstar_core.spec.graph import runs
from mstar_core.spec.layout import Layout
from mstar_core.spec.model import ModelSpec
from mstar_core.wire.messages import Address
from mstar_core.worker.program import CompiledModel, Queue, RunOp
from mstar_core.worker.walks import Task


@dataclass(slots=True, eq=False)
class Flight:
    """A batch on its way through the device thread; without a `queue` it moves a request's pages, and runs no node.

    `started` is the wall clock's time when it began, `seconds` its time on the thread, `error` what it raised.
    """

    engine: Engine
    batch: Batch
    queue: ReadyQueue | None = None
    started: float = 0.0
    seconds: float = 0.0
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class ReadyQueue:
    """Ready runs of one node in one walk.

    `credit` is the scheduler's; `failed` a batch that waits for its successor; `foreign` the operation of runs that
    another worker's walk asked for.
    """

    model: str
    queue: Queue
    engine: Engine
    limits: BatchLimits
    weight: float
    foreign: RunOp
    tasks: deque[Task] = field(default_factory=deque)
    in_flight: list[Flight] = field(default_factory=list)
    credit: float = 0.0
    failed: Flight | None = None


class LoadedModel:
    """One model on this worker: `engines` by node, `queues` by the number of their (node, walk) pair."""

    def __init__(
        self,
        compiled: CompiledModel,
        layout: Layout,
        engines: Mapping[str, Engine],
        limits: Mapping[str, BatchLimits],
        weight: float = 1.0,
    ) -> None:
        self.compiled = compiled
        self.engines = dict(engines)
        self.queues = {
            queue.index: ReadyQueue(
                compiled.spec.card.name,
                queue,
                engines[queue.node],
                limits[queue.node],
                weight,
                RunOp(queue.index, queue.node, (), (), frozenset(), (), ()),
            )
            for queue in compiled.queues
            if queue.node in engines
        }
        self._groups = [layout.group_of[queue.node, queue.walk] for queue in compiled.queues]
        self._homes = layout.home_of
        self._partitions = {run.node: walk.partition for walk in compiled.spec.walks for run in runs(walk.body)}
        self.movable = frozenset(
            node.name
            for node in compiled.spec.nodes
            if len({layout.group_of[key] for key in layout.group_of if key[0] == node.name}) > 1
        )

    @property
    def spec(self) -> ModelSpec:
        """The model's specification."""
        return self.compiled.spec

    def runner(self, queue: int, route: Sequence[Address]) -> Address:
        """The worker that runs a (node, walk) pair for a request of this route."""
        return route[self._groups[queue]]

    def home(self, partition: str, route: Sequence[Address]) -> Address:
        """The worker that walks a partition."""
        return route[self._homes[partition]]

    def home_of_node(self, node: str, route: Sequence[Address]) -> Address:
        """The worker that walks the partition in which a node of a stream runs."""
        return self.home(self._partitions[node], route)

    def nodes_run_by(self, worker: Address, route: Sequence[Address]) -> list[str]:
        """The nodes that a worker runs for a request of this route."""
        return list(
            dict.fromkeys(queue.node for queue in self.compiled.queues if self.runner(queue.index, route) == worker)
        )

    def inputs_read_by(self, worker: Address, route: Sequence[Address]) -> frozenset[str]:
        """The request inputs that a worker's walks read."""
        return frozenset(
            name
            for walk in self.spec.walks
            if self.home(walk.partition, route) == worker
            for name, _ in self.compiled.inputs[walk.name]
        )

    def capacity(self) -> dict[str, int]:
        """KV tokens by node, for nodes that hold any."""
        capacities = {name: engine.capacity() for name, engine in self.engines.items()}
        return {name: tokens for name, tokens in capacities.items() if tokens is not None}
