"""`mstar trace`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from mstar_core.cli.output import json_option, print_json, print_table
from mstar_core.cli.requests import parse_parameters
from mstar_core.errors import ConfigurationError, InvalidRequest, nearest
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.plugins.registry import load_registry
from mstar_core.spec.content import Text
from mstar_core.spec.machine import InputShape, RequestView
from mstar_core.spec.params import SEED, check_parameters
from mstar_core.spec.trace import Trace, trace


@click.command("trace", context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.argument("text")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("--checkpoint", metavar="NAME|DIR|ID", help="Whose configuration to use; weights are not read.")
@click.option(
    "--assume", "assumed", multiple=True, metavar="WALK=HOW", help="How a walk ends: done, until (default) or at_most."
)
@json_option
def trace_request(
    model: str, text: str, options: Sequence[str], checkpoint: str | None, assumed: Sequence[str], as_json: bool
) -> None:
    """Show the walks that a request would take, without loading weights.

    \b
    Examples:
      mstar trace MODEL "Hello there."
      mstar trace MODEL "Hello there." --assume decode=at_most --json
    """
    registry = load_registry()
    card = registry.card(model)
    directory = locate(card, checkpoint, weights=False)
    spec = assemble(registry, model, directory)
    how = _assumptions(assumed, [walk.name for walk in spec.walks])
    try:
        values = check_parameters((*spec.config.parameters, SEED), parse_parameters(spec.config.parameters, options))
        prepared = registry.owner(model).processor(card, spec.config, directory).prepare([Text(text)], values)
    except InvalidRequest as error:
        raise ConfigurationError(error.message) from error
    shapes = {
        name: tuple(InputShape(str(array.dtype), array.shape) for array in arrays)
        for name, arrays in prepared.inputs.items()
    }
    view = RequestView(params=prepared.params, inputs=shapes, outputs=prepared.outputs or frozenset(card.outputs))
    _show(trace(spec, view, how), view, as_json=as_json)


def _assumptions(assumed: Sequence[str], walks: Sequence[str]) -> dict[str, str]:
    how = {}
    for each in assumed:
        walk, equals, ending = each.partition("=")
        if not equals or walk not in walks:
            raise click.UsageError(
                f"--assume {each}: needs WALK=HOW; walks are {', '.join(walks)}{nearest(walk, walks)}"
            )
        how[walk] = ending
    return how


def _show(traced: Trace, view: RequestView, *, as_json: bool) -> None:
    inputs = {name: [list(shape.shape) for shape in shapes] for name, shapes in view.inputs.items()}
    if as_json:
        walks = [
            {
                "walk": each.walk,
                "partition": each.partition,
                "nodes": list(each.nodes),
                "take": dict(each.take),
                "ends": each.how,
            }
            for each in traced.walks
        ]
        print_json({"inputs": inputs, "walks": walks, "end": traced.end})
        return
    for name, shapes in inputs.items():
        click.echo(f"input {name}: {', '.join(map(str, shapes))}")
    rows = [
        (
            str(number),
            each.partition,
            each.walk,
            " -> ".join(each.nodes),
            ", ".join(f"{name}[{index}]" for name, index in each.take.items()),
            each.how,
        )
        for number, each in enumerate(traced.walks, 1)
    ]
    print_table(("", "partition", "walk", "nodes", "takes", "ends"), rows)
    click.echo(f"end: {traced.end}")
