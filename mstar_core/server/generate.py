"""`POST /generate`: the native route, served by every model.

    {"model", "input": text or [part, ...], "outputs": [modality, ...], "parameters": {...}, "stream": bool,
     "audio_format": ..., "request_id": ..., "timeout": seconds}

`parts` says what a part looks like. The answer is `{"id", "model", "outputs": [part, ...], "finish_reason", "usage"}`;
with `stream`, one `output` event per piece of content as it is made, and then `end` or `error`. `audio_format` asks for
encoded audio; streamed, the data of its pieces makes up one file. A request that has not ended after `timeout` seconds
fails (504); without it the model's own deadline holds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Send

from mstar_core import log
from mstar_core.client.service import ServedModel, Service
from mstar_core.client.ticket import Ticket
from mstar_core.errors import InvalidRequest, nearest
from mstar_core.media import AUDIO_FORMATS
from mstar_core.server.audio_track import AudioTrack
from mstar_core.server.body import read_object, shown, validate
from mstar_core.server.boundary import check_request_id
from mstar_core.server.outputs import encoded_part, output_part, output_parts
from mstar_core.server.parts import content_of
from mstar_core.server.replies import event, send_events, send_whole
from mstar_core.server.served import served_model, usage_fields
from mstar_core.server.settings import ServerSettings
from mstar_core.server.tickets import TicketResponse, in_thread
from mstar_core.spec.content import MODALITIES, Audio, Content
from mstar_core.spec.params import check_parameters

ROUTE = "/generate"


class GenerateFields(BaseModel):
    """A request; `input` is checked by the model's card and by `parts`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str
    input: Any
    outputs: list[str] = Field(default_factory=list)
    parameters: dict[str, Any] = Field(default_factory=dict)
    stream: bool = False
    audio_format: str = ""
    request_id: str = ""
    timeout: float = Field(default_factory=float, gt=0, allow_inf_nan=False)

    def given(self, name: str) -> bool:
        """Whether the body has that field."""
        return name in self.model_fields_set


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generation:
    """One checked request."""

    model: str
    content: Sequence[Content]
    params: Mapping[str, Any]
    outputs: frozenset[str] | None
    audio_format: str
    timeout: float | None


def generate_routes(service: Service, settings: ServerSettings) -> APIRouter:
    """The router of `POST /generate`."""
    router = APIRouter()
    schema = {"requestBody": {"content": {"application/json": {"schema": GenerateFields.model_json_schema()}}}}

    @router.post(ROUTE, summary="Any model, any modality", openapi_extra=schema)
    async def generate(request: Request) -> TicketResponse:
        fields = validate(GenerateFields, await read_object(request, settings.max_body_bytes))
        generation = await in_thread(_checked, fields, served_model(service, fields.model))
        if fields.given("request_id"):
            _take_id(fields.request_id, request)

        def submit() -> Ticket:
            return service.submit(
                generation.model,
                generation.content,
                generation.params,
                outputs=generation.outputs,
                request_id=log.request_id.get(),
                timeout=generation.timeout,
            )

        if fields.stream:
            return TicketResponse(submit, partial(_send_events, generation, settings.keepalive_s), settings.stall_s)
        return TicketResponse(submit, partial(_send_json, generation), settings.stall_s)

    return router


def _checked(fields: GenerateFields, model: ServedModel) -> _Generation:
    card = model.spec.card
    if fields.given("outputs"):
        _require_names(fields.outputs, card.outputs, "outputs", f"model {card.name!r} makes")
    if fields.given("audio_format"):
        _require_names([fields.audio_format], tuple(AUDIO_FORMATS), "audio_format", "the formats are")
        if "audio" not in card.outputs:
            raise InvalidRequest(f"'audio_format': model {card.name!r} makes no audio", param="audio_format")
    _check_parameters(fields.parameters, model)
    return _Generation(
        model=fields.model,
        content=_content(fields.input, model),
        params=fields.parameters,
        outputs=frozenset(fields.outputs) if fields.given("outputs") else None,
        audio_format=fields.audio_format,
        timeout=fields.timeout if fields.given("timeout") else None,
    )


def _content(value: object, model: ServedModel) -> list[Content]:
    parts = [{"type": "text", "text": value}] if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise InvalidRequest(f"'input' must be a string or a list of parts, got {shown(value)}", param="input")
    if not parts or (isinstance(value, str) and not value.strip()):
        raise InvalidRequest(f"'input' must hold something, got {shown(value)}", param="input")
    contents = [content_of(part, f"input.{index}") for index, part in enumerate(parts)]
    for index, content in enumerate(contents):
        modality, taken = MODALITIES[type(content)], model.spec.card.inputs
        if modality not in taken:
            path = "input" if isinstance(value, str) else f"input.{index}.type"
            problem = f"model {model.spec.card.name!r} takes {', '.join(taken)}, not {modality}"
            raise InvalidRequest(f"{path!r}: {problem}", param=path)
    return contents


def _require_names(names: Sequence[str], choices: Sequence[str], field: str, what: str) -> None:
    if not names:
        raise InvalidRequest(f"{field!r} must not be empty; {what} {', '.join(choices)}", param=field)
    for name in names:
        if name not in choices:
            problem = f"{field!r} has {shown(name)}{nearest(name, choices)}; {what} {', '.join(choices)}"
            raise InvalidRequest(problem, param=field)


def _check_parameters(given: Mapping[str, Any], model: ServedModel) -> None:
    """As the service will, but with the path that the fields have here."""
    try:
        check_parameters(model.parameters, given)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=f"parameters.{error.param}") from None


def _take_id(given: str, request: Request) -> None:
    check_request_id(given, "request_id")
    header = request.headers.get("x-request-id", given)
    if header != given:
        raise InvalidRequest(f"'request_id' is {given!r}, but the header x-request-id {header!r}", param="request_id")
    log.request_id.set(given)


async def _send_json(generation: _Generation, ticket: Ticket, send: Send) -> None:
    contents = [content async for content in ticket]
    body = await in_thread(_whole_answer, generation, ticket, contents)
    await send_whole(send, {"content-type": "application/json"}, body)


def _whole_answer(generation: _Generation, ticket: Ticket, contents: Sequence[Content]) -> bytes:
    outputs = output_parts(contents, generation.audio_format)
    return msgspec.json.encode({**_last(generation, ticket), "outputs": outputs})


async def _send_events(generation: _Generation, keepalive_s: float, ticket: Ticket, send: Send) -> None:
    await send_events(send, _events(generation, ticket), keepalive_s)


async def _events(generation: _Generation, ticket: Ticket) -> AsyncGenerator[bytes, None]:
    track = AudioTrack(generation.audio_format, streaming=True) if generation.audio_format else None
    try:
        async for content in ticket:
            if not (track and isinstance(content, Audio)):
                yield event("output", output_part(content))
            elif piece := await track.push(content):
                yield event("output", encoded_part(piece, track.format.name, track.rate))
        if track and track.started and (piece := await track.finish()):
            yield event("output", encoded_part(piece, track.format.name, track.rate))
    finally:
        if track:
            track.close()
    yield event("end", _last(generation, ticket))


def _last(generation: _Generation, ticket: Ticket) -> dict[str, Any]:
    """What the answer says beside its outputs."""
    assert ticket.end is not None
    usage = usage_fields(ticket.end.usage)
    return {"id": ticket.id, "model": generation.model, "finish_reason": ticket.end.reason, "usage": usage}
