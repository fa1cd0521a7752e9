"""`POST /generate`: the native route, served by every model.

    {"model", "input": text or [part, ...], "outputs": [modality, ...], "parameters": {...}, "stream": bool,
     "audio_format": ..., "image_format": ..., "request_id": ..., "timeout": seconds}

`parts` says what a part looks like, `answers` what comes back. The body is JSON, or a form whose field `request` is the
JSON and whose other fields are the files that parts name. `audio_format` asks for encoded audio; streamed, the data of
its pieces makes up one file. `image_format` asks for pictures as files. A request that has not
ended after `timeout` seconds fails (504); without it the model's own deadline holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from mstar_core import log
from mstar_core.client.service import ServedModel, Service
from mstar_core.errors import InvalidRequest, nearest
from mstar_core.media import AUDIO_FORMATS, IMAGE_FORMATS
from mstar_core.server.answers import Order, accepted_binary, answered
from mstar_core.server.body import read_request, shown, validate
from mstar_core.server.boundary import check_request_id
from mstar_core.server.outputs import Formats
from mstar_core.server.parts import PartReader
from mstar_core.server.schemas import request_schema
from mstar_core.server.served import require_modality, served_model
from mstar_core.server.settings import ServerSettings
from mstar_core.server.tickets import TicketResponse, in_thread
from mstar_core.server.uploads import Uploads
from mstar_core.spec.content import Content
from mstar_core.spec.model import ModelCard
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
    image_format: str = ""
    request_id: str = ""
    timeout: float = Field(default_factory=float, gt=0, allow_inf_nan=False)

    def given(self, name: str) -> bool:
        """Whether the body has that field."""
        return name in self.model_fields_set


def generate_routes(service: Service, settings: ServerSettings) -> APIRouter:
    """The router of `POST /generate`."""
    router = APIRouter()

    @router.post(ROUTE, summary="Any model, any modality", openapi_extra=request_schema(GenerateFields))
    async def generate(request: Request) -> TicketResponse:
        body, uploads = await read_request(request, settings.max_body_bytes)
        fields = validate(GenerateFields, body)
        binary = accepted_binary(request, stream=fields.stream)
        order = await in_thread(_checked, fields, served_model(service, fields.model), uploads, settings)
        if fields.given("request_id"):
            _take_id(fields.request_id, request)
        return answered(service, settings, order, binary)

    return router


def _checked(fields: GenerateFields, model: ServedModel, uploads: Uploads, settings: ServerSettings) -> Order:
    card = model.spec.card
    if fields.given("outputs"):
        _require_names(fields.outputs, card.outputs, "outputs", f"model {card.name!r} makes")
    formats = {"audio": (fields.audio_format, AUDIO_FORMATS), "image": (fields.image_format, IMAGE_FORMATS)}
    for modality, (format, known) in formats.items():
        if fields.given(f"{modality}_format"):
            _require_format(format, tuple(known), modality, card)
    _check_parameters(fields.parameters, model)
    content = _content(fields.input, model, PartReader(settings.media, uploads, sound="audio" in card.inputs))
    uploads.require_all_named()
    return Order(
        model=fields.model,
        content=content,
        params=fields.parameters,
        outputs=frozenset(fields.outputs) if fields.given("outputs") else None,
        formats=Formats(audio=fields.audio_format, image=fields.image_format),
        timeout=fields.timeout if fields.given("timeout") else None,
        stream=fields.stream,
    )


def _content(value: object, model: ServedModel, reader: PartReader) -> list[Content]:
    parts = [{"type": "text", "text": value}] if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise InvalidRequest(f"'input' must be a string or a list of parts, got {shown(value)}", param="input")
    if not parts or (isinstance(value, str) and not value.strip()):
        raise InvalidRequest(f"'input' must hold something, got {shown(value)}", param="input")
    contents = [reader.content(part, f"input.{index}") for index, part in enumerate(parts)]
    for index, content in enumerate(contents):
        require_modality(model, content, "input" if isinstance(value, str) else f"input.{index}.type")
    return contents


def _require_format(format: str, known: Sequence[str], modality: str, card: ModelCard) -> None:
    field = f"{modality}_format"
    _require_names([format], known, field, "the formats are")
    if modality not in card.outputs:
        raise InvalidRequest(f"{field!r}: model {card.name!r} makes no {modality}", param=field)


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
