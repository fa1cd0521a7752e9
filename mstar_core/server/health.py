"""`GET /health`, `/health/live` and `/health/ready`: is the process alive, and can it serve.

    {"live", "ready", "status": "ready" | "degraded" | "loading" | "unavailable" | "stopping",
     "models": {name: "ready" or why not},
     "workers": {name: {"state": "ready" or why not, "nodes": {model: [node, ...]}, "device",
                        "memory": {"device": bytes, "host": bytes}}}}

`degraded`: every model can be asked, but some worker is away, so that the others do its share.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from mstar_core.client.service import Health, Service
from mstar_core.conductor.models import READY
from mstar_core.server.errors import json_response
from mstar_core.wire.messages import WorkerState

_LOADING = "loading"


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
            "status": status_of(health),
            "models": dict(health.models),
            "workers": {name: _worker_fields(worker) for name, worker in service.workers.items()},
        }
        return json_response(told, 200 if health.live and health.ready else 503)

    @router.get("/health/live", summary="200 while the server runs; needs no API key")
    async def live() -> Response:
        alive = service.health().live
        return json_response({"live": alive}, 200 if alive else 503)

    return router


def status_of(health: Health) -> str:
    """The server's state in a word."""
    if health.ready:
        return READY if all(state == READY for state in health.workers.values()) else "degraded"
    waiting = {state for state in health.models.values() if state != READY}
    if not waiting:
        return "stopping"
    return _LOADING if waiting == {_LOADING} else "unavailable"


def _worker_fields(worker: WorkerState) -> dict[str, Any]:
    return {
        "state": worker.state,
        "nodes": worker.nodes,
        "device": worker.device,
        "memory": {"device": worker.device_bytes, "host": worker.host_bytes},
    }
