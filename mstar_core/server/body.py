"""The JSON body of a request: read within a limit, decoded strictly, checked against a schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from mstar_core.errors import Cancelled, InvalidRequest, TooLarge, nearest

Schema = TypeVar("Schema", bound=BaseModel)

_SHOWN = 60
"""How many characters of a wrong value an error repeats."""


async def read_object(request: Request, limit: int) -> dict[str, Any]:
    """The request's JSON object.

    Raises `TooLarge` as soon as more than `limit` bytes are announced or have come, `InvalidRequest` for another
    content type (which also keeps web pages from posting here without a CORS preflight) or anything but one object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(f"the body must be sent as Content-Type: application/json, got {kind or 'none'}")
    body = await _read(request, limit)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {shown(value)}")
    return value


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


async def _read(request: Request, limit: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise TooLarge(f"the body has {announced} bytes; this server takes at most {limit}")
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise TooLarge(f"the body has more than the {limit} bytes that this server takes")
    except ClientDisconnect:
        raise Cancelled("the client left while it sent the body") from None
    return bytes(body)
