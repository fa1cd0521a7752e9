"""A trace of what a server ran, in Chrome's trace event format: for Perfetto (https://ui.perfetto.dev) and chrome://tracing.

The file is an array with an event on each line. Its last bracket may be missing ("JSON Array Format" of the format's
specification), so that the trace of a server that was killed can be read, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from mstar_core.errors import ConfigurationError
from mstar_core.wire.messages import Span

_log = logging.getLogger(__name__)

_REQUESTS = 1
"""The process that shows requests; workers follow."""


class TraceFile:
    """Writes batches and requests; from any thread. Raises `ConfigurationError` for an impossible path.

    A worker is a process of the trace, a node in one walk of a model a thread of it; requests are asynchronous events
    of a process of their own. Times are microseconds of the wall clock. When the file cannot be written any more, that
    is logged, and the server goes on without a trace.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise ConfigurationError(f"the trace cannot be written to {path}: {error.strerror}") from error
        self._lock = threading.Lock()
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self._separator = b"[\n"
        self._write([_metadata("process_name", _REQUESTS, 0, "requests")])

    def write_spans(self, spans: Sequence[Span]) -> None:
        """Write batches that a worker has run."""
        with self._lock:
            self._write([event for span in spans for event in self._batch(span)])

    def begin_request(self, number: int, model: str, request: str) -> None:
        """Write that a request, which bears that number alone, is sent on its way now."""
        self._write_request("b", number, model, {"request": request})

    def end_request(self, number: int, model: str, reason: str) -> None:
        """Write that it ends now, and why."""
        self._write_request("e", number, model, {"reason": reason})

    def close(self) -> None:
        """Close the array and the file; idempotent."""
        with self._lock:
            if not self._file.closed:
                self._put(b"\n]\n")
                self._file.close()

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_request(self, phase: str, number: int, model: str, arguments: dict[str, str]) -> None:
        shown = {"name": model, "cat": "request", "id": number, "pid": _REQUESTS, "tid": 0}
        with self._lock:
            self._write([{**shown, "ph": phase, "ts": _microseconds(time.time()), "args": arguments}])

    def _batch(self, span: Span) -> Iterator[dict[str, Any]]:
        """The event of a batch, after those that name its process and its thread for the first time."""
        title = f"{span.model}/{span.node}/{span.walk}"
        process = self._processes.get(span.worker)
        if process is None:
            process = self._processes[span.worker] = _REQUESTS + 1 + len(self._processes)
            yield _metadata("process_name", process, 0, span.worker)
        thread = self._threads.get((span.worker, title))
        if thread is None:
            thread = self._threads[span.worker, title] = 1 + len(self._threads)
            yield _metadata("thread_name", process, thread, title)
        # Both ends are rounded in the same way: batches that follow each other must not seem to overlap.
        start, end = _microseconds(span.start), _microseconds(span.start + span.seconds)
        arguments = {"requests": span.requests, "batch": len(span.requests), "failed": span.failed}
        shown = {"name": span.node, "cat": "batch", "ph": "X", "pid": process, "tid": thread}
        yield {**shown, "ts": start, "dur": end - start, "args": arguments}

    def _write(self, events: Sequence[dict[str, Any]]) -> None:
        """Append whole lines, all at once. The comma comes first, so that the last event has none behind it."""
        if events and not self._file.closed:
            lines = b",\n".join(msgspec.json.encode(event) for event in events)
            self._put(self._separator + lines)
            self._separator = b",\n"

    def _put(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            _log.error("the trace cannot be written any more: %s", error)
            self._file.close()


def _metadata(name: str, process: int, thread: int, value: str) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": {"name": value}}


def _microseconds(seconds: float) -> int:
    return int(seconds * 1e6)
