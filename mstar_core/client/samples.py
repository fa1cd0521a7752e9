"""What the runtime counts, as samples for the metrics route."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from mstar_core.client.runtime import Runtime
    from mstar_core.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: Mapping[str, str]
    value: float


def samples_of(runtime: Runtime) -> list[Sample]:
    """Everything that frontend, worker and engines count."""
    counts = runtime.frontend.counts
    samples = [
        Sample("mstar_requests_submitted", "counter", "Requests sent to the Conductor.", {}, counts.submitted),
        Sample("mstar_requests_open", "gauge", "Requests that have not ended.", {}, runtime.frontend.open_requests),
        Sample("mstar_tensors_published", "gauge", "Arrays on their way between parties.", {}, len(runtime.tensors)),
    ]
    for reason, count in list(counts.ended.items()):
        samples.append(Sample("mstar_requests_ended", "counter", "Requests by outcome.", {"reason": reason}, count))
    if runtime.worker is not None:
        samples += _worker_samples(runtime.worker)
    return samples


def _worker_samples(worker: Worker) -> Iterator[Sample]:
    yield Sample(
        "mstar_worker_requests", "gauge", "Requests that hold resources.", {"worker": worker.name}, worker.open_requests
    )
    for (model, node, walk), count in list(worker.gauges.queues.items()):
        labels = {"worker": worker.name, "model": model, "node": node, "walk": walk}
        yield Sample("mstar_batches", "counter", "Batches run.", labels, count.batches)
        yield Sample("mstar_batch_calls", "counter", "Node runs in those batches.", labels, count.calls)
        yield Sample("mstar_batch_seconds", "counter", "Seconds on the device thread.", labels, count.seconds)
        yield Sample("mstar_batches_failed", "counter", "Batches that raised.", labels, count.failed)
    for model, node, name, value in worker.engine_metrics():
        labels = {"worker": worker.name, "model": model, "node": node}
        yield Sample(f"mstar_{name}", "gauge", f"Engine gauge {name}.", labels, value)
