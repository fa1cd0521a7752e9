"""Which model a request means, and whether it serves the route."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mstar_core.client.service import ServedModel, Service
from mstar_core.errors import InvalidRequest, NotFound, nearest
from mstar_core.spec.content import MODALITIES, Content


def served_model(service: Service, name: str) -> ServedModel:
    """The model of that name; raises `NotFound` with the names there are."""
    if model := service.models.get(name):
        return model
    names = ", ".join(sorted(service.models))
    raise NotFound(f"model {name!r} is not served here{nearest(name, service.models)}; models: {names}", param="model")


def model_for_route(service: Service, name: str, route: str, makes: str | None = None) -> ServedModel:
    """The model of that name, if its card lists the route; raises `InvalidRequest` with those that do.

    `makes` is the modality that the route answers with: a placement may have left out what makes it.
    """
    model = served_model(service, name)
    if route in model.spec.card.routes:
        made = model.spec.card.outputs
        if makes is None or makes in made:
            return model
        problem = f"model {name!r}, as it is served here, makes {', '.join(made)}, not {makes}"
        raise InvalidRequest(problem, param="model")
    able = sorted(name for name, other in service.models.items() if route in other.spec.card.routes)
    raise InvalidRequest(
        f"model {name!r} does not serve {route}; models that do: {', '.join(able) or 'none'}", param="model"
    )


def require_modality(model: ServedModel, content: Content, at: str) -> None:
    """Raise `InvalidRequest` on the field `at` for content of a kind that the model does not take."""
    card, modality = model.spec.card, MODALITIES[type(content)]
    if modality not in card.inputs:
        problem = f"model {card.name!r} takes {', '.join(card.inputs)}, not {modality}"
        raise InvalidRequest(f"{at!r}: {problem}", param=at)


def unknown_field(name: str, model: str, known: Collection[str]) -> InvalidRequest:
    """The error of a field that the route does not have and the model does not declare."""
    listed = ", ".join(sorted(known))
    return InvalidRequest(f"unknown field {name!r}{nearest(name, known)}; model {model!r} takes: {listed}", param=name)


def own_params(given: Mapping[str, Any], model: ServedModel, known: Collection[str]) -> dict[str, Any]:
    """The fields of a body that the route does not have itself, which are `known`: all parameters of the model.

    Raises `InvalidRequest` that names the first other one.
    """
    declared = {parameter.name for parameter in model.parameters}
    for name in given:
        if name not in declared:
            raise unknown_field(name, model.spec.card.name, declared | set(known))
    return dict(given)


@contextmanager
def told_as(fields: Mapping[str, str]) -> Iterator[None]:
    """Have errors of a model's parameter name the route's field that set it; `fields` has these by parameter."""
    try:
        yield
    except InvalidRequest as error:
        field = fields.get(error.param or "")
        if field is None:
            raise
        raise InvalidRequest(f"{field!r}: {error.message}", param=field) from None


def usage_fields(usage: Mapping[str, int]) -> dict[str, Any]:
    """A request's counts as clients read them: with a total where both sides were counted."""
    fields: dict[str, Any] = dict(usage)
    if {"input_tokens", "output_tokens"} <= fields.keys():
        fields.setdefault("total_tokens", fields["input_tokens"] + fields["output_tokens"])
    return fields
