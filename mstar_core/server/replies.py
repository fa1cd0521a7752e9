"""The three ways a response is sent: whole, as a stream of bytes, as server-sent events.

Bodies go out in slices, each only when the server's buffer has room again: so a client that reads slowly slows its own
response down, and one that does not read at all is noticed (`impatient`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.types import Message, Send

from mstar_core.errors import Cancelled, RequestError
from mstar_core.server.errors import CutShort, Stalled, error_body

Headers = Mapping[str, str]

_logger = logging.getLogger(__name__)

_SLICE = 16 * 2**10
"""Bytes given to the server at once: what its buffer (64 KiB, asyncio's default) may be filled beyond its limit."""

_COMMENT = b": keep-alive\n\n"
"""A line that clients skip (WHATWG HTML, section 9.2.6: lines that start with a colon)."""


def impatient(send: Send, stall_s: float) -> Send:
    """`send`, which raises `CutShort` when the client takes nothing of what was sent for `stall_s` seconds."""

    async def send_in_time(message: Message) -> None:
        try:
            async with asyncio.timeout(stall_s):
                await send(message)
        except TimeoutError:
            raise CutShort(Stalled(f"the client took nothing of its response for {stall_s:g} s")) from None

    return send_in_time


async def send_whole(send: Send, headers: Headers, body: bytes) -> None:
    """A complete body with its Content-Length."""
    await _start(send, {**headers, "content-length": str(len(body))})
    await _body(send, body, more=False)


async def send_stream(send: Send, headers: Callable[[], Headers], pieces: AsyncGenerator[bytes, None]) -> None:
    """A chunked body, each piece as it is made; `headers` is asked once the first piece is there.

    A failure before that is raised as it is. Later ones leave the body without its end and raise `CutShort`.
    """
    async with aclosing(pieces):
        first = await anext(pieces, b"")
        await _start(send, headers())
        try:
            await _body(send, first)
            async for piece in pieces:
                await _body(send, piece)
        except RequestError as error:
            raise CutShort(error) from error
        await _body(send, b"", more=False)


async def send_events(send: Send, events: AsyncGenerator[bytes, None], keepalive_s: float) -> None:
    """A stream of events, with a comment after each `keepalive_s` of silence.

    A failure before the first event or comment is raised as it is. Later ones are sent as an `error` event; then
    `CutShort` is raised. An exception that nobody foresaw is logged here and told as an internal error.
    """
    async with aclosing(events), aclosing(_with_comments(events, keepalive_s)) as pieces:
        first = await anext(pieces, b"")
        await _start(send, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"})
        try:
            await _body(send, first)
            async for piece in pieces:
                await _body(send, piece)
        except RequestError as error:
            await _end_with(send, error)
        except CutShort:
            raise
        except Exception:
            _logger.exception("a stream of events failed unexpectedly")
            await _end_with(send, RequestError("internal error; the server's log tells more"))
        await _body(send, b"", more=False)


def event(name: str, data: Mapping[str, Any]) -> bytes:
    """One server-sent event; its data is JSON, which has no line breaks of its own."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))


async def _end_with(send: Send, error: RequestError) -> None:
    if not isinstance(error, Cancelled):
        await _body(send, event("error", {"type": "error", **error_body(error)}))
    await _body(send, b"", more=False)
    raise CutShort(error) from error


async def _with_comments(events: AsyncIterator[bytes], interval: float) -> AsyncGenerator[bytes, None]:
    while True:
        upcoming = asyncio.ensure_future(anext(events, None))
        try:
            while not (await asyncio.wait([upcoming], timeout=interval))[0]:
                yield _COMMENT
        finally:
            if not upcoming.done():
                upcoming.cancel()
                await asyncio.wait([upcoming])
        piece = upcoming.result()
        if piece is None:
            return
        yield piece


async def _start(send: Send, headers: Headers) -> None:
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": encoded})


async def _body(send: Send, data: bytes, *, more: bool = True) -> None:
    for first in range(0, max(len(data), 1), _SLICE):
        last = first + _SLICE >= len(data)
        await send({"type": "http.response.body", "body": data[first : first + _SLICE], "more_body": more or not last})
