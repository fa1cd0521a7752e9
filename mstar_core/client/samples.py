"""What the parties of a server count, as samples for the metrics route."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from mstar_core.wire.histogram import Histogram
from mstar_core.wire.messages import Address, Sample

if TYPE_CHECKING:
    from mstar_core.client.frontend import Frontend

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Bucket borders from a refused request (milliseconds) to minutes of generated media."""

FRONTEND = "frontend"
"""What the frontend is called among the parties."""

_LOCAL, _SHARED = "mstar_local_tensors", "mstar_shared_tensors"
"""What transports call the tensors that they keep: those that the threads of a process share, and each party's own in
shared memory."""


class Counts:
    """Requests as a frontend counts them. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._submitted = 0
        self._ended: Counter[tuple[str, str]] = Counter()
        self._first: dict[str, Histogram] = {}
        self._duration: dict[str, Histogram] = {}

    def submitted(self) -> None:
        """A request was sent."""
        with self._lock:
            self._submitted += 1

    def first_output(self, model: str, seconds: float) -> None:
        """The first output of a request has come so long after it was sent."""
        with self._lock:
            self._first.setdefault(model, Histogram(SECONDS)).observe(seconds)

    def ended(self, model: str, reason: str, seconds: float) -> None:
        """A request has ended so long after it was sent; `reason` is a finish reason or an error's code."""
        with self._lock:
            self._ended[model, reason] += 1
            self._duration.setdefault(model, Histogram(SECONDS)).observe(seconds)

    def samples(self) -> Iterator[Sample]:
        """What was counted."""
        with self._lock:
            yield Sample("mstar_requests_submitted", "counter", "Requests sent to the Conductor.", {}, self._submitted)
            for (model, reason), count in self._ended.items():
                labels = {"model": model, "reason": reason}
                yield Sample("mstar_requests_ended", "counter", "Requests by outcome.", labels, count)
            for name, help, histograms in (
                ("mstar_request_first_output_seconds", "From a request to its first output.", self._first),
                ("mstar_request_duration_seconds", "From a request to its end.", self._duration),
            ):
                for model, histogram in histograms.items():
                    yield histogram.sample(name, help, {"model": model})


def samples_of(frontend: Frontend, parties: Mapping[str, Address | None], timeout: float) -> list[Sample]:
    """Everything that the frontend and the `parties` (None: away) count, of those that answer within `timeout` seconds.

    Called by the service, in any thread. `mstar_up` tells who answered. A sample that names no party of its own bears
    the name of the one that it came from.
    """
    answers = frontend.ask_metrics({name: where for name, where in parties.items() if where is not None}, timeout)
    samples = [*frontend.samples()]
    for party in parties:
        samples.append(Sample("mstar_up", "gauge", "Whether it answers.", {"party": party}, float(party in answers)))
    for party, counted in answers.items():
        samples += (from_party(party, sample) for sample in counted)
    samples.append(Sample("mstar_tensors_published", "gauge", "Tensors between parties.", {}, _published(samples)))
    return samples


def from_party(party: str, sample: Sample) -> Sample:
    """The sample with the name of its party, unless it has one."""
    if {"party", "worker"} & sample.labels.keys():
        return sample
    return msgspec.structs.replace(sample, labels={**sample.labels, "party": party})


def _published(samples: Sequence[Sample]) -> float:
    """What waits to be taken: in every party's shared memory, and once what all threads of this process share."""
    shared = sum(sample.value for sample in samples if sample.name == _SHARED)
    own = (each.value for each in samples if each.name == _LOCAL and each.labels.get("party") == FRONTEND)
    return shared + sum(own)
