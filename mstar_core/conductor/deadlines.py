"""Deadlines of requests, in the order in which they come due."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator

from mstar_core.conductor.requests import Request

_FEW = 64
"""As many requests that have ended may stay in the heap, however few there are that have not."""


class Deadlines:
    """A heap of requests by deadline (`time.monotonic` seconds).

    Those that have ended are passed over, and thrown out whenever the heap has doubled: behind a request that runs, a
    thousand others may come and go whose deadlines are far away.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._order = itertools.count()
        self._most = _FEW

    def add(self, request: Request) -> None:
        """Watch a request, if it has a deadline."""
        if request.deadline is None:
            return
        heapq.heappush(self._heap, (request.deadline, next(self._order), request))
        if len(self._heap) > self._most:
            self._heap = [entry for entry in self._heap if not entry[2].ended]
            heapq.heapify(self._heap)
            self._most = max(2 * len(self._heap), _FEW)

    def __len__(self) -> int:
        return len(self._heap)

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
