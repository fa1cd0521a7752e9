"""Every failure of an HTTP request in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

The status follows from the error's type, and so does `code`; both are set once, in the class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mstar_core.errors import Cancelled, InvalidRequest, NotFound, RequestError, TooLarge, nearest


class Unauthorized(RequestError):
    """No API key came along, or none of the server's."""

    status, code, kind = 401, "invalid_api_key", "authentication_error"


class MethodNotAllowed(RequestError):
    """The route exists, but not for this method."""

    status, code, kind = 405, "method_not_allowed", "invalid_request_error"


class Stalled(Cancelled):
    """The client is there, but took nothing of its response for too long."""

    code = "stalled"


class CutShort(Exception):
    """A response failed after its status line was sent; `error` says why.

    Its sender has told the client as far as its format can (an `error` event; otherwise a body that does not end).
    """

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error


def error_body(error: RequestError) -> dict[str, Any]:
    """The JSON object of an error."""
    fields = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
    return {"error": fields}


def error_response(error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
    """The whole HTTP response of an error."""
    sent = dict(headers or {})
    if error.retry_after is not None:
        sent["retry-after"] = str(math.ceil(error.retry_after))  # whole seconds: RFC 9110, section 10.2.3
    if isinstance(error, Unauthorized):
        sent["www-authenticate"] = "Bearer"
    if isinstance(error, TooLarge):
        sent["connection"] = "close"  # the rest of the body is not read
    return json_response(error_body(error), error.status, sent)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response. JSON knows no NaN or infinity: they become null."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def install_error_handlers(app: FastAPI) -> None:
    """Answer request errors, and requests that fit no route, in the shape of this module."""

    async def answer_request_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return error_response(error)

    async def answer_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return error_response(_routing_error(request, error), error.headers)

    app.add_exception_handler(RequestError, answer_request_error)
    app.add_exception_handler(HTTPException, answer_http_error)


def _routing_error(request: Request, error: HTTPException) -> RequestError:
    method, path = request.method, request.url.path
    if error.status_code == 405:
        allowed = (error.headers or {}).get("allow", "")
        return MethodNotAllowed(f"{path} does not take {method}; it takes {allowed}")
    if error.status_code == 404:
        return NotFound(f"no route {path}{nearest(path, request.app.openapi()['paths'])}")
    return InvalidRequest(str(error.detail))
