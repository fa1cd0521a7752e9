"""How the OpenAPI schema describes bodies that the routes read themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def json_schema(fields: type[BaseModel]) -> dict[str, Any]:
    """What a route that takes JSON alone adds to its OpenAPI operation."""
    return {"requestBody": {"content": {"application/json": {"schema": fields.model_json_schema()}}}}


def image_form_schema(fields: type[BaseModel]) -> dict[str, Any]:
    """What a route adds that takes its fields as JSON, or as those of a form, where `image` is a file or several."""
    schema = fields.model_json_schema()
    file = {"type": "string", "format": "binary"}
    form = {
        **schema,
        "properties": {**schema["properties"], "image": file, "image[]": {"type": "array", "items": file}},
    }
    content = {"application/json": {"schema": schema}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


def request_schema(fields: type[BaseModel]) -> dict[str, Any]:
    """What a route adds to its OpenAPI operation: its fields as JSON or as a form with files, and its three answers."""
    schema = fields.model_json_schema()
    form = {
        "type": "object",
        "properties": {"request": schema},
        "required": ["request"],
        "additionalProperties": {"type": "string", "format": "binary"},
    }
    binary = {"type": "string", "format": "binary"}
    answers = {
        "application/json": {"schema": {"type": "object"}},
        "application/vnd.safetensors": {"schema": binary},
        "application/octet-stream": {"schema": binary},
        "text/event-stream": {"schema": {"type": "string"}},
    }
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": schema},
                "multipart/form-data": {"schema": form, "encoding": {"request": {"contentType": "application/json"}}},
            },
        },
        "responses": {"200": {"description": "What the model made.", "content": answers}},
    }
