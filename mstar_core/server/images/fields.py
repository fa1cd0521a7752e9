"""The fields of the two routes, and the request that they make of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mstar_core.client.service import ServedModel
from mstar_core.errors import InvalidRequest
from mstar_core.media import IMAGE_FORMATS
from mstar_core.media.image_formats import DEFAULT_QUALITY
from mstar_core.server.body import shown
from mstar_core.server.rules import NotBlank, choice
from mstar_core.server.served import own_params, told_as
from mstar_core.server.several import MOST, Requests
from mstar_core.spec.content import Content
from mstar_core.spec.params import check_parameters

_SIZE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")

_SIDES = {"width": "size", "height": "size"}
"""The model's parameters that `size` sets."""

_CONTENT = {"input": "prompt"}
"""What the model calls its content."""

_NEUTRAL = {"quality": ("auto",), "background": ("auto", "opaque")}
"""Fields that only some models have as a parameter, and the values that ask nothing of those that have not."""


class ImageFields(BaseModel):
    """The fields of every model; what else a body has must be a request parameter of its model.

    `user` is a label, with no effect in OpenAI's API either.
    """

    model_config = ConfigDict(strict=True, extra="allow")

    model: str
    prompt: NotBlank
    n: int = Field(1, ge=1, le=MOST)
    size: str = "auto"
    quality: str = "auto"
    background: str = "auto"
    response_format: Literal["b64_json", "url"] = "b64_json"
    output_format: str = "png"
    output_compression: int = Field(DEFAULT_QUALITY, ge=0, le=100)
    stream: bool = False
    partial_images: Literal[0] = 0
    user: str = ""

    @field_validator("output_format")
    @classmethod
    def _known(cls, name: str) -> str:
        return choice(name, IMAGE_FORMATS)

    @field_validator("size")
    @classmethod
    def _well_formed(cls, size: str) -> str:
        if size != "auto" and not _SIZE.fullmatch(size):
            raise ValueError(f"must be 'auto' or WIDTHxHEIGHT in pixels, as 1024x768; got {shown(size)}")
        return size

    def given(self, name: str) -> bool:
        """Whether the body has that field."""
        return name in self.model_fields_set


class EditFields(ImageFields):
    """With the pictures to work on: base64 of their files, data URLs, or addresses on hosts that are allowed."""

    image: list[str] = Field(min_length=1)

    @field_validator("image", mode="before")
    @classmethod
    def _listed(cls, image: Any) -> Any:
        return [image] if isinstance(image, str) else image


@dataclass(frozen=True, slots=True, kw_only=True)
class Picturing:
    """One checked request: what the model gets, and how the pictures are answered.

    `name` is what OpenAI's events begin with: `image_generation` or `image_edit`.
    """

    name: str
    requests: Requests
    format: str
    quality: int
    as_url: bool
    stream: bool


def picturing_of(name: str, fields: ImageFields, content: list[Content], model: ServedModel) -> Picturing:
    """The request that the fields ask of this model; raises `InvalidRequest` for what it cannot have."""
    params, named = _params(fields, model)
    with told_as(named):
        check_parameters(model.parameters, params)
    if fields.given("output_compression") and not IMAGE_FORMATS[fields.output_format].lossy:
        problem = f"'output_compression' is for jpeg and webp; {fields.output_format} keeps every pixel"
        raise InvalidRequest(problem, param="output_compression")
    return Picturing(
        name=name,
        requests=Requests(
            model=fields.model,
            content=content,
            params=params,
            outputs=frozenset({"image"}),
            n=fields.n,
            fields=named,
        ),
        format=fields.output_format,
        quality=fields.output_compression,
        as_url=fields.response_format == "url",
        stream=fields.stream,
    )


def _params(fields: ImageFields, model: ServedModel) -> tuple[dict[str, Any], Mapping[str, str]]:
    """The model's parameters that the fields set, and the fields by parameter where their names differ."""
    declared = {parameter.name for parameter in model.parameters}
    params = own_params(fields.model_extra or {}, model, type(fields).model_fields)
    for name, neutral in _NEUTRAL.items():
        value = getattr(fields, name)
        if name in declared and fields.given(name):
            params[name] = value
        elif value not in neutral:
            problem = f"model {fields.model!r} has no {name!r} to choose; leave it out, or give {' or '.join(neutral)}"
            raise InvalidRequest(f"{name!r}: {problem}", param=name)
    if fields.size == "auto":
        return params, _CONTENT
    if not _SIDES.keys() <= declared:
        raise InvalidRequest(f"'size': model {fields.model!r} has one size only, 'auto'", param="size")
    if both := sorted(_SIDES.keys() & params.keys()):
        raise InvalidRequest(f"'size' and {both[0]!r} both say how large; give one of them", param="size")
    width, height = fields.size.split("x")
    return params | {"width": int(width), "height": int(height)}, _CONTENT | _SIDES
