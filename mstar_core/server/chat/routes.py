"""The router of `POST /v1/chat/completions`."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from mstar_core.client.service import Service
from mstar_core.server.body import read_object, validate
from mstar_core.server.chat.answers import send_chunks, send_completion
from mstar_core.server.chat.fields import Chat, ChatFields, chat_of
from mstar_core.server.chat.messages import Conversation
from mstar_core.server.parts import PartReader
from mstar_core.server.remote import RemoteMedia
from mstar_core.server.schemas import json_schema
from mstar_core.server.served import model_for_route
from mstar_core.server.settings import ServerSettings
from mstar_core.server.tickets import TicketsResponse, in_thread
from mstar_core.server.uploads import Uploads

ROUTE = "/v1/chat/completions"


def chat_routes(service: Service, settings: ServerSettings) -> APIRouter:
    """The router of `POST /v1/chat/completions`."""
    router = APIRouter()

    @router.post(ROUTE, summary="A conversation", openapi_extra=json_schema(ChatFields))
    async def create_chat_completion(request: Request) -> TicketsResponse:
        body = await read_object(request, settings.max_body_bytes)
        chat = await in_thread(_checked, service, settings, body)
        answer = partial(send_chunks, chat, settings.keepalive_s) if chat.stream else partial(send_completion, chat)
        return TicketsResponse(partial(chat.requests.submit, service), answer, settings.stall_s)

    return router


def _checked(service: Service, settings: ServerSettings, body: dict[str, Any]) -> Chat:
    fields = validate(ChatFields, body)
    model = model_for_route(service, fields.model, ROUTE)
    reader = PartReader(settings.media, Uploads({}), sound="audio" in model.spec.card.inputs)
    remote = RemoteMedia(hosts=settings.media_hosts, max_bytes=settings.max_body_bytes)
    return chat_of(fields, Conversation(model, reader, remote).content(fields.messages), model)
