"""Request parameters on a command line: options that depend on the model, which is known only after it is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from mstar_core.errors import nearest
from mstar_core.spec.params import Parameter


def parse_parameters(parameters: Sequence[Parameter], arguments: Sequence[str]) -> dict[str, Any]:
    """Values from `--name value` and `--name=value` pairs; raises `click.UsageError` for an unknown name or bad value.

    Names may be written with dashes. Ranges are checked later, where every face checks them.
    """
    known = {parameter.name: parameter for parameter in parameters}
    values: dict[str, Any] = {}
    left = list(arguments)
    while left:
        option = left.pop(0)
        name, equals, text = option.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not option.startswith("--") or name not in known:
            options = [f"--{each.replace('_', '-')}" for each in known]
            raise click.UsageError(f"no option {option}{nearest(option, options)}; this model has {', '.join(options)}")
        if not equals:
            if not left:
                raise click.UsageError(f"{option} needs a value")
            text = left.pop(0)
        values[name] = _value(known[name], text)
    return values


def describe_parameters(parameters: Sequence[Parameter]) -> str:
    """The model's options, one a line, for help."""
    rows = [(f"--{each.name.replace('_', '-')}", f"{each.doc}{_default(each)}") for each in parameters]
    width = max(len(option) for option, _ in rows)
    return "\n".join(f"  {option:<{width}}  {text}" for option, text in rows)


def _default(parameter: Parameter) -> str:
    choices = f" One of {', '.join(parameter.choices)}." if parameter.choices else ""
    return choices if parameter.default is None else f"{choices} [default: {parameter.default}]"


def _value(parameter: Parameter, text: str) -> int | float | bool | str:
    try:
        match parameter.kind:
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "bool":
                return {"true": True, "false": False}[text.lower()]
    except (ValueError, KeyError):
        raise click.UsageError(f"--{parameter.name.replace('_', '-')}: {text!r} is no {parameter.kind}") from None
    return text
