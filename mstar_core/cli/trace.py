"""`mstar trace`."""

from __future__ import annotations

from dataclasses import asdict

import click

from mstar_core.cli.inputs import input_arguments, request_content
from mstar_core.cli.output import json_option, print_json, print_table
from mstar_core.cli.requests import RequestCommand, request_registry, request_values
from mstar_core.errors import ConfigurationError, InvalidRequest
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.spec.machine import InputShape, RequestView
from mstar_core.spec.params import SEED, check_parameters
from mstar_core.spec.trace import Trace, TracedLoop, TracedWalk, assumptions, trace


@click.command("trace", cls=RequestCommand)
@click.argument("model")
@input_arguments
@click.option("--checkpoint", metavar="NAME|DIR|ID", help="Whose configuration to use; weights are not read.")
@click.option(
    "--assume",
    "assumed",
    multiple=True,
    metavar="WALK=HOW|WALK.FLAG",
    help="How a walk ends (done, until or at_most), or that it raises a flag. Default: by its stop signal, no flags.",
)
@json_option
@click.pass_context
def trace_request(
    ctx: click.Context,
    model: str,
    inputs: tuple[str, ...],
    tensors: tuple[str, ...],
    checkpoint: str | None,
    assumed: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the walks that a request to MODEL would take, without loading weights. INPUT is as for `mstar run`.

    \b
    Examples:
      mstar trace MODEL "Hello there."
      mstar trace MODEL "Hello there." --assume decode=at_most --json
    """
    registry = request_registry(ctx)
    card = registry.card(model)
    content = request_content(inputs, tensors, card)
    directory = locate(card, checkpoint, weights=False)
    spec = assemble(registry, model, directory)
    settled = assumptions(spec, assumed)
    try:
        values = check_parameters((*spec.config.parameters, SEED), request_values(ctx))
        values.pop(SEED.name)
        prepared = registry.owner(model).processor(card, spec.config, directory).prepare(content, values)
    except InvalidRequest as error:
        raise ConfigurationError(error.message) from error
    shapes = {
        name: tuple(InputShape(str(array.dtype), array.shape) for array in arrays)
        for name, arrays in prepared.inputs.items()
    }
    view = RequestView(params=prepared.params, inputs=shapes, outputs=prepared.outputs or frozenset(card.outputs))
    _show(trace(spec, view, settled), view, as_json=as_json)


def _show(traced: Trace, view: RequestView, *, as_json: bool) -> None:
    if as_json:
        inputs = {name: [list(shape.shape) for shape in shapes] for name, shapes in view.inputs.items()}
        print_json({"inputs": inputs, "walks": [asdict(walk) for walk in traced.walks], "end": traced.end})
        return
    for name, shapes in view.inputs.items():
        click.echo(f"input {name}: {', '.join(f'{shape.dtype}{list(shape.shape)}' for shape in shapes)}")
    rows = [(str(number), *_row(walk)) for number, walk in enumerate(traced.walks, 1)]
    print_table(("", "walk", "partition", "nodes", "loops", "ends"), rows)
    click.echo(f"end: {traced.end}")


def _row(walk: TracedWalk) -> tuple[str, ...]:
    takes = ", ".join(f"{name}[{index}]" for name, index in walk.take.items())
    nodes = ", ".join(f"{node} ({engine})" for node, engine in walk.nodes.items())
    title = f"{walk.walk} ({takes})" if takes else walk.walk
    return title, walk.partition, nodes, "; ".join(map(_loop, walk.loops)) or "-", walk.ends


def _loop(loop: TracedLoop) -> str:
    nodes = " ".join(loop.nodes)
    if loop.until is None:
        return f"{nodes} {loop.at_most} times"
    return f"{nodes} until {loop.until}" + ("" if loop.at_most is None else f", at most {loop.at_most} times")
