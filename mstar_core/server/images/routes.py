"""The router of `POST /v1/images/generations` and `POST /v1/images/edits`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from mstar_core.client.service import ServedModel, Service
from mstar_core.server.body import is_form, read_fields, read_object, validate
from mstar_core.server.images.answers import send_picture_events, send_pictures
from mstar_core.server.images.fields import EditFields, ImageFields, Picturing, picturing_of
from mstar_core.server.images.forms import split_form, typed
from mstar_core.server.parts import PartReader, base64_bytes
from mstar_core.server.remote import RemoteMedia
from mstar_core.server.schemas import image_form_schema, json_schema
from mstar_core.server.served import model_for_route, require_modality
from mstar_core.server.settings import ServerSettings
from mstar_core.server.tickets import TicketsResponse, in_thread
from mstar_core.server.uploads import Uploads
from mstar_core.spec.content import Text

GENERATIONS = "/v1/images/generations"
EDITS = "/v1/images/edits"


class _ModelField(BaseModel):
    """What must be known of a form before its texts can be read as what its model wants."""

    model: str


def image_routes(service: Service, settings: ServerSettings) -> APIRouter:
    """The router of the two routes."""
    router = APIRouter()

    @router.post(GENERATIONS, summary="A text to pictures", openapi_extra=json_schema(ImageFields))
    async def create_image(request: Request) -> TicketsResponse:
        body = await read_object(request, settings.max_body_bytes)
        return _answered(service, settings, await in_thread(_generation, service, body))

    @router.post(EDITS, summary="Pictures and a text to pictures", openapi_extra=image_form_schema(EditFields))
    async def edit_image(request: Request) -> TicketsResponse:
        if is_form(request):
            form = await read_fields(request, settings.max_body_bytes)
            picturing = await in_thread(_edit_of_form, service, settings, form)
        else:
            body = await read_object(request, settings.max_body_bytes)
            picturing = await in_thread(_edit, service, settings, body)
        return _answered(service, settings, picturing)

    return router


def _answered(service: Service, settings: ServerSettings, picturing: Picturing) -> TicketsResponse:
    streamed = partial(send_picture_events, picturing, settings.keepalive_s)
    answer = streamed if picturing.stream else partial(send_pictures, picturing)
    return TicketsResponse(partial(picturing.requests.submit, service), answer, settings.stall_s)


def _generation(service: Service, body: dict[str, Any]) -> Picturing:
    fields = validate(ImageFields, body)
    model = model_for_route(service, fields.model, GENERATIONS, makes="image")
    return picturing_of("image_generation", fields, [Text(fields.prompt)], model)


def _edit(service: Service, settings: ServerSettings, body: dict[str, Any]) -> Picturing:
    fields = validate(EditFields, body)
    model = model_for_route(service, fields.model, EDITS, makes="image")
    remote = RemoteMedia(hosts=settings.media_hosts, max_bytes=settings.max_body_bytes)
    given = [(f"image.{number}", text) for number, text in enumerate(fields.image)]
    return _edit_with(settings, fields, model, [(at, _file(text, remote, at)) for at, text in given])


def _file(text: str, remote: RemoteMedia, at: str) -> bytes:
    """What a text of the field `image` stands for: only URLs have a colon."""
    return remote.read(text, at) if ":" in text[:8] else base64_bytes(text, at)


def _edit_of_form(service: Service, settings: ServerSettings, form: Sequence[tuple[str, bytes]]) -> Picturing:
    texts, pictures = split_form(form)
    model = model_for_route(service, validate(_ModelField, texts).model, EDITS, makes="image")
    fields = validate(EditFields, {**typed(texts, model), "image": [at for at, _ in pictures]})
    return _edit_with(settings, fields, model, pictures)


def _edit_with(
    settings: ServerSettings, fields: EditFields, model: ServedModel, pictures: Sequence[tuple[str, bytes]]
) -> Picturing:
    """The model gets the pictures in their order, and then the text."""
    reader = PartReader(settings.media, Uploads({}))
    images = [reader.image_file(data, at) for at, data in pictures]
    for (at, _), image in zip(pictures, images, strict=True):
        require_modality(model, image, at)
    return picturing_of("image_edit", fields, [*images, Text(fields.prompt)], model)
