"""`GET /v1/models`, `GET /v1/models/{id}` and `GET /v1/audio/voices`: what is served, and what it takes."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from mstar_core.client.service import ServedModel, Service
from mstar_core.errors import InvalidRequest
from mstar_core.server.errors import json_response
from mstar_core.server.served import served_model
from mstar_core.spec.params import Parameter


def model_routes(service: Service) -> APIRouter:
    """The router of the three routes."""
    router = APIRouter()
    created = int(time.time())

    @router.get("/v1/models", summary="The models that are served")
    async def list_models() -> Response:
        data = [_model_fields(name, model, created) for name, model in service.models.items()]
        return json_response({"object": "list", "data": data})

    @router.get("/v1/models/{name:path}", summary="One model")
    async def read_model(name: str) -> Response:
        return json_response(_model_fields(name, served_model(service, name), created))

    @router.get("/v1/audio/voices", summary="The voices of the speech models")
    async def list_voices(request: Request) -> Response:
        return json_response(_voices(service, _asked_model(request)))

    return router


def _model_fields(name: str, model: ServedModel, created: int) -> dict[str, Any]:
    """OpenAI's model object, and what M* knows beside it."""
    card = model.spec.card
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "mstar",
        "family": card.family,
        "summary": card.summary,
        "checkpoint": model.checkpoint,
        "modalities": {"input": card.inputs, "output": card.outputs},
        "routes": ["/generate", *card.routes],
        "parameters": [_parameter_fields(parameter) for parameter in model.parameters],
    }


def _parameter_fields(parameter: Parameter) -> dict[str, Any]:
    bounds = {
        "minimum": parameter.minimum,
        "exclusive_minimum": parameter.exclusive_minimum,
        "maximum": parameter.maximum,
        "choices": list(parameter.choices) or None,
        "doc": parameter.doc or None,
    }
    told = {name: value for name, value in bounds.items() if value is not None}
    return {"name": parameter.name, "kind": parameter.kind, "default": parameter.default, **told}


def _asked_model(request: Request) -> str | None:
    for name in request.query_params:
        if name != "model":
            raise InvalidRequest(f"unknown query parameter {name!r}; this route takes 'model'", param=name)
    return request.query_params.get("model")


def _voices(service: Service, name: str | None) -> dict[str, Any]:
    """Every voice once, and those of each model that has voices."""
    models = service.models if name is None else {name: served_model(service, name)}
    parameters = {name: _voice_parameter(model) for name, model in models.items()}
    with_voices = {name: parameter for name, parameter in parameters.items() if parameter}
    return {
        "voices": list(dict.fromkeys(voice for parameter in with_voices.values() for voice in parameter.choices)),
        "models": {
            name: {"voices": parameter.choices, "default": parameter.default} for name, parameter in with_voices.items()
        },
    }


def _voice_parameter(model: ServedModel) -> Parameter | None:
    """The model's voices are the choices of its parameter `voice`."""
    return next((parameter for parameter in model.parameters if parameter.name == "voice"), None)
