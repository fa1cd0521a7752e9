"""What a worker counts of itself; read by the metrics route from another thread."""

from __future__ import annotations

from dataclasses import dataclass, field

from mstar_core.worker.models import Flight, ReadyQueue


@dataclass(slots=True)
class QueueCount:
    """Batches of one node in one walk: how many, with how many calls, seconds on the device thread, how many raised."""

    batches: int = 0
    calls: int = 0
    seconds: float = 0.0
    failed: int = 0


@dataclass(slots=True)
class WorkerGauges:
    """Counts by (model, node, walk)."""

    queues: dict[tuple[str, str, str], QueueCount] = field(default_factory=dict)

    def count(self, queue: ReadyQueue, flight: Flight) -> None:
        """Add a batch that has run."""
        entry = self.queues.setdefault((queue.model, queue.queue.node, queue.queue.walk), QueueCount())
        entry.batches += 1
        entry.calls += len(flight.batch.calls)
        entry.seconds += flight.seconds
        entry.failed += flight.error is not None
