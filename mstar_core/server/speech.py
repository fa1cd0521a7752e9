"""`POST /v1/audio/speech`: text to speech as in OpenAI's API, by every model whose card lists the route.

Beside OpenAI's fields a request may set each request parameter that its model declares. `stream: true` sends the audio
as it is made (`stream_format: audio`, the default: a chunked body; `sse`: events). Naming a `stream_format` asks for a
stream. A stream that fails never ends cleanly: a chunked body is cut off, events end with an `error` event.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.types import Send

from mstar_core import log
from mstar_core.client.service import ServedModel, Service
from mstar_core.client.ticket import Ticket
from mstar_core.errors import InvalidRequest
from mstar_core.media import AUDIO_FORMATS
from mstar_core.media.tempo import MAX_SPEED, MIN_SPEED
from mstar_core.server.audio_track import AudioTrack
from mstar_core.server.body import read_object, shown, validate
from mstar_core.server.replies import event, send_events, send_stream, send_whole
from mstar_core.server.rules import NotBlank, choice
from mstar_core.server.schemas import json_schema
from mstar_core.server.served import model_for_route, unknown_field, usage_fields
from mstar_core.server.settings import ServerSettings
from mstar_core.server.tickets import TicketResponse
from mstar_core.spec.content import Text

ROUTE = "/v1/audio/speech"

_OPTIONAL = ("voice", "instructions")
"""Fields of OpenAI's that only some models have."""


class SpeechFields(BaseModel):
    """The fields of every model; what else a body has must be a request parameter of its model."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str
    input: NotBlank
    voice: str = ""
    response_format: str = "mp3"
    speed: float = Field(1.0, ge=MIN_SPEED, le=MAX_SPEED)
    stream: bool = False
    stream_format: Literal["audio", "sse"] = "audio"

    @field_validator("voice", mode="before")
    @classmethod
    def _name_of(cls, voice: Any) -> Any:
        if isinstance(voice, Mapping):
            if voice.keys() != {"id"}:
                raise ValueError(f"must be a voice's name or {{'id': name}}, got {shown(voice)}")
            return voice["id"]
        return voice

    @field_validator("response_format")
    @classmethod
    def _known(cls, name: str) -> str:
        return choice(name, AUDIO_FORMATS)

    def given(self, name: str) -> bool:
        """Whether the body has that field."""
        return name in self.model_fields_set


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speech:
    """One checked request: what the model gets, and how the answer is made."""

    text: str
    params: Mapping[str, Any]
    format: str
    speed: float
    stream: bool
    events: bool


def speech_routes(service: Service, settings: ServerSettings) -> APIRouter:
    """The router of `POST /v1/audio/speech`."""
    router = APIRouter()

    @router.post(ROUTE, summary="Text to speech", openapi_extra=json_schema(SpeechFields))
    async def create_speech(request: Request) -> TicketResponse:
        fields = validate(SpeechFields, await read_object(request, settings.max_body_bytes))
        model = model_for_route(service, fields.model, ROUTE, makes="audio")
        speech = _checked(fields, model)

        def submit() -> Ticket:
            content, wanted = [Text(speech.text)], frozenset({"audio"})
            return service.submit(fields.model, content, speech.params, outputs=wanted, request_id=log.request_id.get())

        if speech.events:
            return TicketResponse(submit, partial(_send_events, speech, settings.keepalive_s), settings.stall_s)
        # A body without length ends, in HTTP/1.0, like one that was cut off: such clients get the whole.
        chunked = speech.stream and request.scope["http_version"] != "1.0"
        return TicketResponse(submit, partial(_send_chunked if chunked else _send_whole, speech), settings.stall_s)

    return router


def _checked(fields: SpeechFields, model: ServedModel) -> _Speech:
    """The request that the fields ask of this model; raises `InvalidRequest` for what it cannot have."""
    declared = {parameter.name for parameter in model.parameters}
    own_speed = "speed" in declared
    params = dict(fields.model_extra or {})
    if fields.given("voice"):
        params["voice"] = fields.voice
    if fields.given("speed") and own_speed:
        params["speed"] = fields.speed
    for name in params:
        if name not in declared:
            raise _unsupported(name, fields.model, declared)
    if fields.given("stream_format") and fields.given("stream") and not fields.stream:
        raise InvalidRequest("'stream_format' says how to stream, but 'stream' is false", param="stream_format")
    return _Speech(
        text=fields.input,
        params=params,
        format=fields.response_format,
        speed=1.0 if own_speed else fields.speed,
        stream=fields.stream or fields.given("stream_format"),
        events=fields.stream_format == "sse",
    )


def _unsupported(name: str, model: str, declared: set[str]) -> InvalidRequest:
    if name in _OPTIONAL:
        return InvalidRequest(f"model {model!r} does not support {name!r}", param=name)
    return unknown_field(name, model, declared | SpeechFields.model_fields.keys())


async def _send_whole(speech: _Speech, ticket: Ticket, send: Send) -> None:
    track = AudioTrack(speech.format, speed=speech.speed, streaming=False)
    body = b"".join([piece async for piece in track.encoded(ticket)])
    assert ticket.end is not None
    await send_whole(send, {**_headers(track), "x-mstar-finish-reason": ticket.end.reason}, body)


async def _send_chunked(speech: _Speech, ticket: Ticket, send: Send) -> None:
    track = AudioTrack(speech.format, speed=speech.speed, streaming=True)
    await send_stream(send, partial(_headers, track), track.encoded(ticket))


async def _send_events(speech: _Speech, keepalive_s: float, ticket: Ticket, send: Send) -> None:
    await send_events(send, _events(speech, ticket), keepalive_s)


async def _events(speech: _Speech, ticket: Ticket) -> AsyncGenerator[bytes, None]:
    """OpenAI's events `speech.audio.delta` and `speech.audio.done`; the last also says why the speech ended."""
    track = AudioTrack(speech.format, speed=speech.speed, streaming=True)
    delta, done = "speech.audio.delta", "speech.audio.done"
    async with aclosing(track.encoded(ticket)) as pieces:
        async for piece in pieces:
            yield event(delta, {"type": delta, "audio": base64.b64encode(piece).decode()})
    assert ticket.end is not None
    yield event(done, {"type": done, "usage": usage_fields(ticket.end.usage), "finish_reason": ticket.end.reason})


def _headers(track: AudioTrack) -> dict[str, str]:
    """What describes the audio; its rate is known once the first piece is there."""
    return {"content-type": track.format.media_type, "x-mstar-sample-rate": str(track.rate)}
