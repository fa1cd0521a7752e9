"""`GET /health`, `/health/live` and `/health/ready`: is the process alive, and can it serve."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from mstar_core.client.service import Service
from mstar_core.server.errors import json_response


def health_routes(service: Service) -> APIRouter:
    """The router. Live: a restart would not help. Ready: every model can be asked. 503 where the answer is no."""
    router = APIRouter()

    @router.get("/health", summary="Alive and ready, with the reasons if not")
    @router.get("/health/ready", summary="The same: 200 while every model can be asked")
    async def ready() -> Response:
        health = service.health()
        told = {
            "live": health.live,
            "ready": health.ready,
            "models": dict(health.models),
            "workers": dict(health.workers),
        }
        return json_response(told, 200 if health.live and health.ready else 503)

    @router.get("/health/live", summary="200 while the server runs; needs no API key")
    async def live() -> Response:
        alive = service.health().live
        return json_response({"live": alive}, 200 if alive else 503)

    return router
