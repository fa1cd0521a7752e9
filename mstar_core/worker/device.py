"""The device thread: executes batches in the order they were handed over, and wakes the loop after each."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable

import torch

from mstar_core.worker.models import Flight


class DeviceThread:
    """Runs one batch after another. `submit` and `finished` belong to the worker's loop thread."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: queue.SimpleQueue[Flight | None] = queue.SimpleQueue()
        self._finished: deque[Flight] = deque()
        self._thread = threading.Thread(target=self._run, name=f"{name}-device", daemon=True)
        self._thread.start()
        self.in_flight = 0

    def submit(self, flight: Flight) -> None:
        """Hand a batch over."""
        self.in_flight += 1
        self._waiting.put(flight)

    def finished(self) -> list[Flight]:
        """Batches that have run since the last call, in order."""
        flights = []
        while self._finished:
            flights.append(self._finished.popleft())
        self.in_flight -= len(flights)
        return flights

    def close(self) -> None:
        """Let what was handed over run to its end, then leave."""
        self._waiting.put(None)
        self._thread.join()

    @torch.inference_mode()
    def _run(self) -> None:
        while (flight := self._waiting.get()) is not None:
            flight.started = time.time()
            started = time.perf_counter()
            try:
                flight.engine.run(flight.batch)
            except Exception as error:  # isolation boundary: a node's code; the loop blames the requests at fault
                flight.error = error
            flight.seconds = time.perf_counter() - started
            self._finished.append(flight)
            self._wake()
