"""The body of a request, JSON or a form: read within a limit, decoded strictly, checked against a schema."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from mstar_core.errors import Cancelled, InvalidRequest, TooLarge, nearest
from mstar_core.server.multipart import read_form
from mstar_core.server.uploads import Uploads

Schema = TypeVar("Schema", bound=BaseModel)

_SHOWN = 60
"""How many characters of a wrong value an error repeats."""


_REQUEST = "request"
"""The field of a form that has the JSON object; every other one is a file."""


async def read_object(request: Request, limit: int) -> dict[str, Any]:
    """The request's JSON object.

    Raises `TooLarge` as soon as more than `limit` bytes are announced or have come, `InvalidRequest` for another
    content type (which also keeps web pages from posting here without a CORS preflight) or anything but one object.
    """
    if (kind := _content_type(request)) != "application/json":
        raise InvalidRequest(f"the body must be sent as Content-Type: application/json, got {kind or 'none'}")
    return _object(await _whole(request, limit), "the body")


async def read_request(request: Request, limit: int) -> tuple[dict[str, Any], Uploads]:
    """The request's JSON object, and the files beside it if the body is a form whose field `request` is the object.

    Raises as `read_object` and `read_fields`, and `InvalidRequest` for two fields of one name.
    """
    if not is_form(request):
        return await read_object(request, limit), Uploads({})
    form: dict[str, bytes] = {}
    for name, value in await read_fields(request, limit):
        if name in form:
            raise InvalidRequest(f"the form has two fields {name!r}", param=name)
        form[name] = value
    if _REQUEST not in form:
        problem = f"the form needs a field {_REQUEST!r} with the JSON object; it has: {', '.join(form) or 'none'}"
        raise InvalidRequest(problem, param=_REQUEST)
    return _object(form.pop(_REQUEST), f"the field {_REQUEST!r}"), Uploads(form)


def is_form(request: Request) -> bool:
    """Whether the body is a form that may hold files."""
    return _content_type(request) == "multipart/form-data"


async def read_fields(request: Request, limit: int) -> list[tuple[str, bytes]]:
    """The names and values of a form's fields, in their order.

    Raises as `read_object`, and `InvalidRequest` for a form from a web page of another origin: those come without a
    preflight.
    """
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise InvalidRequest(f"forms from pages of other origins are not taken, and this one is from {origin}")
    return await read_form(request.headers["content-type"], _pieces(request, limit))


def validate(schema: type[Schema], value: Mapping[str, Any], at: str = "") -> Schema:
    """`value` as `schema`; raises `InvalidRequest` whose `param` is the first wrong field's dotted path, below `at`."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        problems = [_problem(schema, at, problem) for problem in error.errors(include_url=False)]
    path = problems[0][0]
    raise InvalidRequest("; ".join(message for _, message in problems), param=path)


def shown(value: object) -> str:
    """A client's value, as JSON, short enough for a message."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _problem(schema: type[BaseModel], at: str, problem: Any) -> tuple[str, str]:
    """Path and message of one finding of pydantic's."""
    path = ".".join(str(step) for step in ((at,) if at else ()) + problem["loc"])
    if problem["type"] == "missing":
        return path, f"{path!r} is required"
    if problem["type"] == "extra_forbidden":
        return path, f"unknown field {path!r}{nearest(str(problem['loc'][-1]), schema.model_fields)}"
    if problem["type"] == "value_error":
        return path, f"{path!r} {problem['ctx']['error']}"
    rule = problem["msg"].replace("Input should be", "must be", 1)
    return path, f"{path!r} {rule}; got {shown(problem['input'])}"


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} must be a JSON object, got {shown(value)}")
    return value


async def _whole(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for piece in _pieces(request, limit):
        body += piece
    return bytes(body)


async def _pieces(request: Request, limit: int) -> AsyncIterator[bytes]:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise TooLarge(f"the body has {announced} bytes; this server takes at most {limit}")
    came = 0
    try:
        async for piece in request.stream():
            came += len(piece)
            if came > limit:
                raise TooLarge(f"the body has more than the {limit} bytes that this server takes")
            yield piece
    except ClientDisconnect:
        raise Cancelled("the client left while it sent the body") from None
