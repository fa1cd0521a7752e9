"""Logging of the server and the CLI: one record a line, as text or JSON, each with the id of its request.

Modules only take a logger (`logging.getLogger(__name__)`). A process's entry point calls `configure` once. `request_id`
follows a request through its coroutines and the threads that `asyncio.to_thread` starts for it; a loop that serves many
requests says with `extra={"request": id}` which one a record is about.
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from mstar_core.errors import ConfigurationError, nearest

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The public id of the request that the current code works for."""


def configure(format: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Send every record of this process to `stream` (default: standard error), in place of what was set up before.

    Raises `ConfigurationError` for a format or level that is none of `LOG_FORMATS`, `LOG_LEVELS`.
    """
    _require(format, LOG_FORMATS, "log format")
    _require(level, LOG_LEVELS, "log level")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if format == "json" else _TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


class _TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123+00:00 INFO logger [request] message`, and a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        owner = _owner(record)
        name = f"{record.name} [{owner}]" if owner else record.name
        line = f"{_time(record)} {record.levelname} {name} {_one_line(record.getMessage())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonFormatter(logging.Formatter):
    """An object with `time`, `level`, `logger`, `message`, and where there is one `request_id` and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if owner := _owner(record):
            fields["request_id"] = owner
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _owner(record: logging.LogRecord) -> str | None:
    owner: str | None = record.__dict__.get("request")
    return owner or request_id.get()


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _one_line(message: str) -> str:
    """What a client sent must not look like a record of its own."""
    return message.replace("\r", "\\r").replace("\n", "\\n")


def _require(value: str, choices: tuple[str, ...], what: str) -> None:
    if value not in choices:
        raise ConfigurationError(f"{what} {value!r} is none of {', '.join(choices)}{nearest(value, choices)}")
