"""Deadlines of requests, in the order in which they come due."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator

from mstar_core.conductor.requests import Request


class Deadlines:
    """A heap of requests by deadline (`time.monotonic` seconds); those that have ended meanwhile are passed over."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._order = itertools.count()

    def add(self, request: Request) -> None:
        """Watch a request, if it has a deadline."""
        if request.deadline is not None:
            heapq.heappush(self._heap, (request.deadline, next(self._order), request))

    def due(self) -> Iterator[Request]:
        """Requests whose time is over and that have not ended."""
        now = time.monotonic()
        while self._heap and (self._heap[0][2].ended or self._heap[0][0] <= now):
            request = heapq.heappop(self._heap)[2]
            if not request.ended:
                yield request

    def next(self) -> float | None:
        """Seconds until the first deadline; None when there is none."""
        return max(self._heap[0][0] - time.monotonic(), 0.0) if self._heap else None
