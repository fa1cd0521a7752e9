"""The HTTP application over a service."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from mstar_core.client.service import Service
from mstar_core.server.auth import ApiKeys
from mstar_core.server.boundary import RequestBoundary
from mstar_core.server.chat.routes import chat_routes
from mstar_core.server.errors import install_error_handlers
from mstar_core.server.generate import generate_routes
from mstar_core.server.health import health_routes
from mstar_core.server.images.routes import image_routes
from mstar_core.server.metrics import HttpMetrics, metrics_routes
from mstar_core.server.models import model_routes
from mstar_core.server.settings import ServerSettings
from mstar_core.server.speech import speech_routes
from mstar_core.server.worlds import world_routes


def create_app(service: Service, settings: ServerSettings) -> FastAPI:
    """Every route over `service`, which the caller starts and closes. Made once per process by `run` and by tests.

    No CORS headers, and no pages that load scripts from elsewhere (FastAPI's `/docs`); the schema is `/openapi.json`.
    """
    app = FastAPI(title="M*", version=version("mstar-core"), docs_url=None, redoc_url=None, redirect_slashes=False)
    metrics = HttpMetrics(service)
    for router in (
        chat_routes(service, settings),
        image_routes(service, settings),
        speech_routes(service, settings),
        world_routes(service, settings),
        generate_routes(service, settings),
        model_routes(service),
        health_routes(service),
        metrics_routes(metrics),
    ):
        app.include_router(router)
    install_error_handlers(app)
    if settings.api_keys:
        app.add_middleware(ApiKeys, keys=settings.api_keys)
    app.add_middleware(RequestBoundary, metrics=metrics)  # the last one added is the outermost
    return app
