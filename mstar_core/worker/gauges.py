"""What a worker counts of itself, for the metrics route, and what it ran, for a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mstar_core.wire.histogram import Histogram
from mstar_core.wire.messages import Address, Sample, Span, Spans
from mstar_core.worker.batches import tasks_of
from mstar_core.worker.models import Flight, LoadedModel, ReadyQueue
from mstar_core.worker.post import Post
from mstar_core.worker.requests import RequestRun

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper borders of batch sizes."""

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper borders of a batch's time on the device thread: from a decode step on a GPU to a long video on a CPU."""

_SPANS_IN_A_MESSAGE = 1000
"""How many batches are told to the trace at once, at the latest."""


@dataclass(slots=True)
class QueueCount:
    """Batches of one node in one walk: their sizes, their seconds on the device thread, how many raised."""

    sizes: Histogram = field(default_factory=lambda: Histogram(_SIZES))
    seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    failed: int = 0


class WorkerGauges:
    """One worker's counts, by model, node and walk. With `trace_to` every batch is told to that frontend."""

    def __init__(
        self, worker: str, models: Mapping[str, LoadedModel], post: Post, trace_to: Address | None = None
    ) -> None:
        self._worker = worker
        self._models = models
        self._post = post
        self._trace_to = trace_to
        self._queues: dict[tuple[str, str, str], QueueCount] = {}
        self._spans: list[Span] = []

    def count(self, flight: Flight, queue: ReadyQueue) -> None:
        """Add a batch that has run."""
        place = (queue.model, queue.queue.node, queue.queue.walk)
        entry = self._queues.get(place)
        if entry is None:
            entry = self._queues[place] = QueueCount()
        entry.sizes.observe(len(flight.batch.calls))
        entry.seconds.observe(flight.seconds)
        entry.failed += flight.error is not None
        if self._trace_to is not None:
            requests = [task.run.request.id for task in tasks_of(flight)]
            failed = flight.error is not None
            self._spans.append(Span(self._worker, *place, flight.started, flight.seconds, requests, failed))
            if len(self._spans) >= _SPANS_IN_A_MESSAGE:
                self.send_spans()

    def send_spans(self) -> None:
        """Tell the trace what has run since the last time."""
        if self._spans and self._trace_to is not None:
            self._post.send(self._trace_to, Spans(self._spans))
            self._spans = []

    def samples(self, requests: Mapping[int, RequestRun]) -> Iterator[Sample]:
        """Everything that is counted here."""
        own = {"worker": self._worker}
        yield Sample("mstar_worker_requests", "gauge", "Requests that hold resources.", own, len(requests))
        for (model, node, walk), count in self._queues.items():
            labels = {**own, "model": model, "node": node, "walk": walk}
            yield Sample("mstar_batches", "counter", "Batches run.", labels, count.sizes.count)
            yield Sample("mstar_batch_calls", "counter", "Node runs in those batches.", labels, count.sizes.total)
            yield Sample("mstar_batch_seconds", "counter", "Seconds on the device thread.", labels, count.seconds.total)
            yield Sample("mstar_batches_failed", "counter", "Batches that raised.", labels, count.failed)
            yield count.sizes.sample("mstar_batch_size", "Node runs in a batch.", labels)
            yield count.seconds.sample("mstar_batch_duration_seconds", "Time of a batch.", labels)
        for model, loaded in self._models.items():
            yield from self._model_samples(model, loaded, requests)

    def _model_samples(self, model: str, loaded: LoadedModel, requests: Mapping[int, RequestRun]) -> Iterator[Sample]:
        own = {"worker": self._worker, "model": model}
        for queue in loaded.queues.values():
            labels = {**own, "node": queue.queue.node, "walk": queue.queue.walk}
            yield Sample("mstar_ready_calls", "gauge", "Node runs that are ready and wait.", labels, len(queue.tasks))
        for index, edge in enumerate(loaded.spec.edges):
            streams = [run.streams[index] for run in requests.values() if run.model is loaded and index in run.streams]
            labels = {**own, "source": edge.source, "target": edge.target}
            buffered = sum(stream.buffered for stream in streams)
            yield Sample("mstar_stream_items", "gauge", "Items in the buffers of a stream.", labels, buffered)
        for node, engine in loaded.engines.items():
            for name, value in engine.metrics().items():
                yield Sample(f"mstar_{name}", "gauge", f"Engine gauge {name}.", {**own, "node": node}, value)
