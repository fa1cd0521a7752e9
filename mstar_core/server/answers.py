"""What a native route answers: JSON, safetensors, or server-sent events.

JSON is `{"id", "model", "outputs": [part, ...], "finish_reason", "usage"}` (see `outputs`). A client that accepts
`application/octet-stream` or `application/vnd.safetensors` gets safetensors instead, the other fields in its metadata.
Streamed, each piece of content is an event as it is made: `step` for a tensor that is made step by step, `output` for
the rest; then `end` or `error`. In between, `progress`, with `done` and `total`, says how far an output has come.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from fastapi import Request
from starlette.types import Send

from mstar_core import log
from mstar_core.client.service import Service
from mstar_core.client.ticket import Ticket
from mstar_core.errors import InvalidRequest
from mstar_core.server.audio_track import AudioTrack
from mstar_core.server.outputs import RAW, Formats, encoded_part, output_part, output_parts, safetensors_body
from mstar_core.server.replies import event, send_events, send_whole
from mstar_core.server.served import usage_fields
from mstar_core.server.settings import ServerSettings
from mstar_core.server.tickets import TicketResponse, in_thread
from mstar_core.spec.content import Audio, Content, Progress, Tensor

BINARY_TYPES = ("application/vnd.safetensors", "application/octet-stream")
"""The media types by which a client asks for safetensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One checked request: what the model gets, and how the answer is made.

    `outputs` None: the processor's choice, or all that the model makes. `timeout` None: the model's own deadline.
    """

    model: str
    content: Sequence[Content]
    params: Mapping[str, Any]
    outputs: frozenset[str] | None = None
    formats: Formats = RAW
    timeout: float | None = None
    stream: bool = False


def accepted_binary(request: Request, *, stream: bool) -> str | None:
    """The binary media type that the client's Accept header names, if any; a stream of events cannot be binary."""
    for given in request.headers.get("accept", "").split(","):
        kind, _, options = given.partition(";")
        if kind.strip().lower() not in BINARY_TYPES or options.replace(" ", "") in ("q=0", "q=0.0"):
            continue
        if stream:
            problem = f"'stream' gives events, which are text; leave it out, or do not accept {kind.strip()}"
            raise InvalidRequest(problem, param="stream")
        return kind.strip().lower()
    return None


def answered(service: Service, settings: ServerSettings, order: Order, binary: str | None) -> TicketResponse:
    """The response that submits an order; `binary` is what `accepted_binary` gave."""
    content = [order.content]  # given up when it is submitted: nobody holds a clip's frames while the answer is made
    order = replace(order, content=())

    def submit() -> Ticket:
        return service.submit(
            order.model,
            content.pop(),
            order.params,
            outputs=order.outputs,
            request_id=log.request_id.get(),
            timeout=order.timeout,
        )

    if order.stream:
        return TicketResponse(submit, partial(_send_events, order, settings.keepalive_s), settings.stall_s)
    return TicketResponse(submit, partial(_send_whole, order, binary), settings.stall_s)


async def _send_whole(order: Order, binary: str | None, ticket: Ticket, send: Send) -> None:
    contents = [piece async for piece in ticket if not isinstance(piece, Progress)]
    body = await in_thread(_whole, order, ticket, contents, binary)
    assert ticket.end is not None
    headers = {"content-type": binary or "application/json", "x-mstar-finish-reason": ticket.end.reason}
    await send_whole(send, headers, body)


def _whole(order: Order, ticket: Ticket, contents: Sequence[Content], binary: str | None) -> bytes:
    told = _told(order, ticket)
    if binary:
        return safetensors_body(contents, order.formats, told)
    return msgspec.json.encode({**told, "outputs": output_parts(contents, order.formats)})


async def _send_events(order: Order, keepalive_s: float, ticket: Ticket, send: Send) -> None:
    await send_events(send, _events(order, ticket), keepalive_s)


async def _events(order: Order, ticket: Ticket) -> AsyncGenerator[bytes, None]:
    track = AudioTrack(order.formats.audio, streaming=True) if order.formats.audio else None
    try:
        async for content in ticket:
            if isinstance(content, Progress):
                yield event("progress", {"done": content.done, "total": content.total})
            elif not (track and isinstance(content, Audio)):
                yield event(_name(content), await in_thread(output_part, content, order.formats.image))
            elif piece := await track.push(content):
                yield event("output", encoded_part(piece, track.format.name, track.rate))
        if track and track.started and (piece := await track.finish()):
            yield event("output", encoded_part(piece, track.format.name, track.rate))
    finally:
        if track:
            track.close()
    yield event("end", _told(order, ticket))


def _name(content: Content) -> str:
    return "step" if isinstance(content, Tensor) and content.step is not None else "output"


def _told(order: Order, ticket: Ticket) -> dict[str, Any]:
    """What the answer says beside its outputs."""
    assert ticket.end is not None
    usage = usage_fields(ticket.end.usage)
    return {"id": ticket.id, "model": order.model, "finish_reason": ticket.end.reason, "usage": usage}
