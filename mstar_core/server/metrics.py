"""`GET /metrics`: the service's samples and the HTTP server's own, in Prometheus' text or OpenMetrics format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from starlette.responses import Response

from mstar_core.client.samples import SECONDS
from mstar_core.client.service import Service
from mstar_core.wire.messages import Sample

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpMetrics:
    """Counts of one app. Labels come from closed sets (routes, methods, statuses), never from what a client wrote."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_ServiceCollector(service))
        self.in_flight = Gauge("mstar_http_requests_in_flight", "Requests being answered.", registry=self.registry)
        self._requests = Counter(
            "mstar_http_requests",
            "Requests by route, method and status; 499: the client left.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._cut = Counter(
            "mstar_http_responses_cut",
            "Responses that ended after their status line without being complete, by the error's code.",
            ("route", "code"),
            registry=self.registry,
        )
        self._duration = self._histogram("duration", "From a request's head to the end of its response.")
        self._first_byte = self._histogram("first_byte", "From a request's head to the first byte of a good body.")

    def finished(self, route: str, method: str, status: int, duration: float, first_byte: float | None) -> None:
        """Count one response; times in seconds, `first_byte` None when no body was sent."""
        self._requests.labels(route, method if method in _METHODS else "other", str(status)).inc()
        self._duration.labels(route).observe(duration)
        if first_byte is not None and status < 400:
            self._first_byte.labels(route).observe(first_byte)

    def cut(self, route: str, code: str) -> None:
        """Count one response that was cut short."""
        self._cut.labels(route, code).inc()

    def _histogram(self, name: str, help: str) -> Histogram:
        return Histogram(
            f"mstar_http_request_{name}_seconds", help, ("route",), registry=self.registry, buckets=SECONDS
        )


class _ServiceCollector:
    """Reads the service's samples anew for every scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        samples = sorted(self._service.metrics(), key=lambda sample: sample.name)
        for name, group in groupby(samples, key=lambda sample: sample.name):
            yield _family(name, list(group))


def _family(name: str, samples: Sequence[Sample]) -> Metric:
    """The samples of one name. A label that a sample lacks is empty, which means the same to Prometheus."""
    labels = sorted({label for sample in samples for label in sample.labels})
    values = [[sample.labels.get(label, "") for label in labels] for sample in samples]
    help = samples[0].help
    if samples[0].kind == "histogram":
        histogram = HistogramMetricFamily(name, help, labels=labels)
        for of, sample in zip(values, samples, strict=True):
            histogram.add_metric(of, [(_border(top), count) for top, count in sample.buckets], sample.value)
        return histogram
    family = (CounterMetricFamily if samples[0].kind == "counter" else GaugeMetricFamily)(name, help, labels=labels)
    for of, sample in zip(values, samples, strict=True):
        family.add_metric(of, sample.value)
    return family


def _border(top: float) -> str:
    return "+Inf" if math.isinf(top) else str(top)


def metrics_routes(metrics: HttpMetrics) -> APIRouter:
    """The router of `/metrics`."""
    router = APIRouter()

    @router.get("/metrics", summary="Metrics in Prometheus' format")
    def read_metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"content-type": content_type})

    return router
