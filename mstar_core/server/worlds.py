"""Routes for clips and for world models, each served by every model whose card lists it.

    POST /v1/video/embeddings   a clip or picture to latents; by the model's `task` also predictions and labels
    POST /v1/world/rollouts     what was seen, and actions, to what would follow
    POST /v1/world/plans        what was seen, and a goal, to actions

`observations` has the fields, `answers` what comes back. The last two take `stream: true`, and then send a `step` event
for every tensor of every simulated moment, or of every refinement of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request

from mstar_core.client.service import Service
from mstar_core.server.answers import Order, accepted_binary, answered
from mstar_core.server.body import read_request, validate
from mstar_core.server.observations import Observation, ObservationFields, WorldFields
from mstar_core.server.parts import PartReader
from mstar_core.server.schemas import request_schema
from mstar_core.server.served import model_for_route
from mstar_core.server.settings import ServerSettings
from mstar_core.server.tickets import TicketResponse, in_thread
from mstar_core.server.uploads import Uploads


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """One of the routes: its fields, and the model's task that it stands for."""

    path: str
    summary: str
    fields: type[ObservationFields]
    task: str
    fixed: bool = True


_ROUTES = (
    _Route(
        path="/v1/video/embeddings",
        summary="A clip to latents",
        fields=ObservationFields,
        task="encode",
        fixed=False,
    ),
    _Route(path="/v1/world/rollouts", summary="Actions to what would follow", fields=WorldFields, task="rollout"),
    _Route(path="/v1/world/plans", summary="A goal to actions", fields=WorldFields, task="plan"),
)


def world_routes(service: Service, settings: ServerSettings) -> APIRouter:
    """The router of the three routes."""
    router = APIRouter()
    for route in _ROUTES:
        _add(router, route, service, settings)
    return router


def _add(router: APIRouter, route: _Route, service: Service, settings: ServerSettings) -> None:
    @router.post(
        route.path,
        name=route.task,
        summary=route.summary,
        operation_id=f"create_{route.task}",
        openapi_extra=request_schema(route.fields),
    )
    async def create(request: Request) -> TicketResponse:
        body, uploads = await read_request(request, settings.max_body_bytes)
        binary = accepted_binary(request, stream=body.get("stream") is True)
        order = await in_thread(_ordered, route, service, settings, body, uploads)
        return answered(service, settings, order, binary)


def _ordered(
    route: _Route, service: Service, settings: ServerSettings, body: dict[str, object], uploads: Uploads
) -> Order:
    fields = validate(route.fields, body)
    model = model_for_route(service, fields.model, route.path)
    reader = PartReader(settings.media, uploads, sound="audio" in model.spec.card.inputs)
    return Observation(fields, model, reader).order(route.task, fixed=route.fixed)
