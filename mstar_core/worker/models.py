"""A model as a worker holds it: its compiled programs, one engine per node, one ready queue per node and walk."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from mstar_core.engines.base import Batch, BatchLimits, Engine
from mstar_core.spec.model import ModelSpec
from mstar_core.worker.program import CompiledModel, Queue
from mstar_core.worker.walks import Task


@dataclass(slots=True, eq=False)
class Flight:
    """A batch on its way through the device thread. `seconds` is its time there, `error` what it raised."""

    queue: ReadyQueue
    batch: Batch
    seconds: float = 0.0
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class ReadyQueue:
    """Ready runs of one node in one walk.

    `credit` is the scheduler's; `failed` a batch that waits for its successor.
    """

    model: str
    queue: Queue
    engine: Engine
    limits: BatchLimits
    weight: float
    tasks: deque[Task] = field(default_factory=deque)
    in_flight: list[Flight] = field(default_factory=list)
    credit: float = 0.0
    failed: Flight | None = None


class LoadedModel:
    """One model on this worker."""

    def __init__(
        self,
        compiled: CompiledModel,
        engines: Mapping[str, Engine],
        limits: Mapping[str, BatchLimits],
        weight: float = 1.0,
    ) -> None:
        self.compiled = compiled
        self.engines = dict(engines)
        self.queues = [
            ReadyQueue(
                compiled.spec.card.name, queue, engines[queue.node], limits.get(queue.node, BatchLimits()), weight
            )
            for queue in compiled.queues
        ]

    @property
    def spec(self) -> ModelSpec:
        """The model's specification."""
        return self.compiled.spec

    def capacity(self) -> dict[str, int]:
        """KV tokens by node, for nodes that hold any."""
        capacities = {name: engine.capacity() for name, engine in self.engines.items()}
        return {name: tokens for name, tokens in capacities.items() if tokens is not None}
