"""Commands that take one request: MODEL, INPUT..., and one option for each request parameter of that model.

Which options there are is known once MODEL is, so the arguments are read twice: first for MODEL and `--checkpoint`,
then whole, with the model's own options added. `--help` after a MODEL therefore lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from mstar_core.cli.inputs import Picture
from mstar_core.errors import InvalidRequest
from mstar_core.plugins.assemble import locate
from mstar_core.plugins.registry import Registry, load_registry
from mstar_core.spec.params import SEED, Parameter

_VALUES = "mstar.request.values"
_OPTIONS = "mstar.request.options"
_REGISTRY = "mstar.request.registry"

_TYPES = {"int": click.INT, "float": click.FLOAT, "str": click.STRING}


class RequestCommand(click.Command):
    """A command whose first argument is MODEL; its options are the command's own and the model's parameters."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read MODEL and the checkpoint first, then everything."""
        model, checkpoint = self._first_reading(ctx, list(args))
        if model is not None:
            ctx.meta[_REGISTRY] = load_registry()
            own = {name for option in self.params for name in option.opts}
            parameters = (*_parameters(ctx.meta[_REGISTRY], model, checkpoint), SEED)
            ctx.meta[_OPTIONS] = [_option(parameter, own) for parameter in parameters]
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters and, once MODEL is known, the model's."""
        own = super().get_params(ctx)
        return [*own, *ctx.meta.get(_OPTIONS, ())]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's options, then the model's under a heading of their own."""
        groups = {"Options": super().get_params(ctx), "Request parameters": ctx.meta.get(_OPTIONS, ())}
        for title, options in groups.items():
            shown = [option for option in options if isinstance(option, click.Option)]
            rows = [row for option in shown if (row := option.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _first_reading(self, ctx: click.Context, args: list[str]) -> tuple[str | None, str | None]:
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        values, _, _ = parser.parse_args(args)
        checkpoint = values.get("checkpoint")
        model = values.get("model")
        if isinstance(model, Picture):
            raise click.UsageError("--image before MODEL: name the model first, what it is shown after it")
        if isinstance(model, str) and model.startswith("-"):
            raise click.UsageError(f"no option {model} before MODEL: name the model first, its own options after it")
        return (model if isinstance(model, str) else None), (checkpoint if isinstance(checkpoint, str) else None)


def request_values(ctx: click.Context) -> dict[str, Any]:
    """The parameters that were given, checked one by one."""
    return dict(ctx.meta.get(_VALUES, {}))


def request_registry(ctx: click.Context) -> Registry:
    """The registry that the model's options came from."""
    registry = ctx.meta[_REGISTRY]
    assert isinstance(registry, Registry)
    return registry


def _parameters(registry: Registry, model: str, checkpoint: str | None) -> Sequence[Parameter]:
    """The parameters of a model, which may depend on the checkpoint's configuration."""
    card = registry.card(model)
    directory: Path = locate(card, checkpoint, weights=False)
    return registry.owner(model).config(card, directory).parameters


def _option(parameter: Parameter, taken: set[str]) -> click.Option:
    """One parameter as an option; `--param-NAME` where the command has an option NAME of its own."""
    name = parameter.name.replace("_", "-")
    name = f"param-{name}" if f"--{name}" in taken else name
    flag = parameter.kind == "bool"
    return click.Option(
        [f"--{name}/--no-{name}" if flag else f"--{name}", f"parameter_{parameter.name}"],
        type=None if flag else _TYPES[parameter.kind],
        default=None,
        metavar=None if flag else _metavar(parameter),
        help=_help(parameter),
        expose_value=False,
        callback=_keep(parameter),
    )


def _keep(parameter: Parameter) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        if value is None:
            return
        try:
            ctx.meta.setdefault(_VALUES, {})[parameter.name] = parameter.check(value)
        except InvalidRequest as error:
            raise click.UsageError(error.message) from error

    return keep


def _metavar(parameter: Parameter) -> str:
    return "|".join(parameter.choices) if 0 < len(parameter.choices) <= 4 else parameter.kind.upper()


def _help(parameter: Parameter) -> str:
    """The doc, the choices, the range and the default."""
    details = [", ".join(each for each in parameter.choices if each)] if len(parameter.choices) > 4 else []
    low = parameter.minimum if parameter.minimum is not None else parameter.exclusive_minimum
    if low is not None:
        details.append(f"{'at least' if parameter.minimum is not None else 'more than'} {low}")
    if parameter.maximum is not None and parameter.name != SEED.name:
        details.append(f"at most {parameter.maximum}")
    if parameter.default not in (None, ""):
        details.append(f"default: {str(parameter.default).lower() if parameter.kind == 'bool' else parameter.default}")
    return parameter.doc + (f"  [{'; '.join(details)}]" if details else "")
