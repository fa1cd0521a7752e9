"""`GET /metrics`: the service's samples and the HTTP server's own, in Prometheus' text or OpenMetrics format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.responses import Response

from mstar_core.client.service import Service

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Bucket borders from a refused request (milliseconds) to minutes of generated media."""

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
            f"mstar_http_request_{name}_seconds", help, ("route",), registry=self.registry, buckets=_SECONDS
        )


class _ServiceCollector:
    """Reads the service's samples anew for every scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        samples = sorted(self._service.metrics(), key=lambda sample: sample.name)
        for name, group in groupby(samples, key=lambda sample: sample.name):
            members = list(group)
            labels = list(members[0].labels)
            make = CounterMetricFamily if members[0].kind == "counter" else GaugeMetricFamily
            family = make(name, members[0].help, labels=labels)
            for sample in members:
                family.add_metric([sample.labels[label] for label in labels], sample.value)
            yield family


def metrics_routes(metrics: HttpMetrics) -> APIRouter:
    """The router of `/metrics`."""
    router = APIRouter()

    @router.get("/metrics", summary="Metrics in Prometheus' format")
    def read_metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"content-type": content_type})

    return router
