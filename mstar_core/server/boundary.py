"""The outermost layer around every HTTP request: its id, its log line, its metrics, and unexpected exceptions."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mstar_core import log
from mstar_core.errors import Cancelled, InvalidRequest, RequestError, Unavailable
from mstar_core.server.errors import CutShort, error_response
from mstar_core.server.metrics import HttpMetrics

_ID_HEADER = "x-request-id"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_access = logging.getLogger("mstar_core.server.access")
_logger = logging.getLogger(__name__)


def check_request_id(value: str, param: str) -> str:
    """`value`, if it can be a request's id; otherwise raises `InvalidRequest` on `param`."""
    if _ID.fullmatch(value):
        return value
    raise InvalidRequest(f"{param!r} must be 1 to 128 of the characters A-Z a-z 0-9 . _ : -", param=param)


class RequestBoundary:
    """ASGI middleware. Every response carries `x-request-id`: the client's own, or a new one.

    An isolation boundary: an exception that nobody foresaw is logged here once, with its traceback, and becomes a 500.
    After the status line nothing can be said any more: the response is left without its end, upon which the HTTP
    server closes the connection, so that no client takes it for complete.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        log.request_id.set(f"req-{uuid.uuid4().hex}")
        with self._metrics.in_flight.track_inprogress():
            cut = await self._answered(scope, receive, answer)
        self._record(scope, answer, cut)

    async def _answered(self, scope: Scope, receive: Receive, answer: _Answer) -> RequestError | None:
        """Run the application; the error, if it cut the response short."""
        try:
            given = dict(scope["headers"]).get(_ID_HEADER.encode())
            if given is not None:
                log.request_id.set(check_request_id(given.decode("latin-1"), _ID_HEADER))
            await self._app(scope, receive, answer.send)
        except CutShort as short:
            return short.error
        except RequestError as error:
            return await self._failed(error, scope, receive, answer)
        except asyncio.CancelledError:
            return await self._failed(Unavailable("the server is stopping"), scope, receive, answer)
        except Exception:
            _logger.exception("a request failed unexpectedly")
            problem = f"internal error; the server's log tells more of request {log.request_id.get()}"
            return await self._failed(RequestError(problem), scope, receive, answer)
        return None

    async def _failed(
        self, error: RequestError, scope: Scope, receive: Receive, answer: _Answer
    ) -> RequestError | None:
        if answer.status is not None:
            return error
        await error_response(error)(scope, receive, answer.send)
        return None

    def _record(self, scope: Scope, answer: _Answer, cut: RequestError | None) -> None:
        route = getattr(scope.get("route"), "path", "none")
        status = answer.status or Cancelled.status
        duration = time.monotonic() - answer.started
        self._metrics.finished(route, scope["method"], status, duration, answer.first_byte)
        path = scope.get("raw_path", b"").decode("latin-1")
        first = f", first byte after {answer.first_byte:.3f} s" if answer.first_byte is not None else ""
        _access.info("%s %s %d in %.3f s%s", scope["method"], path, status, duration, first)
        if cut is not None:
            self._metrics.cut(route, cut.code)
            level = logging.INFO if isinstance(cut, Cancelled) else logging.WARNING
            _access.log(level, "the response was cut short: %s: %s", cut.code, cut.message)


class _Answer:
    """The response so far: `status` once sent, `first_byte` in seconds after the request's head."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = time.monotonic()
        self.status: int | None = None
        self.first_byte: float | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._name_request(message)
        elif message.get("body") and self.first_byte is None:
            self.first_byte = time.monotonic() - self.started
        await self._send(message)

    def _name_request(self, message: dict[str, Any] | Message) -> None:
        MutableHeaders(scope=message)[_ID_HEADER] = log.request_id.get() or ""
