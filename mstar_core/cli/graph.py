"""`mstar graph`."""

from __future__ import annotations

import click

from mstar_core.plugins.assemble import assemble, locate
from mstar_core.plugins.registry import load_registry
from mstar_core.spec.render import to_mermaid, to_text

RENDERERS = {"text": to_text, "mermaid": to_mermaid}


@click.command()
@click.argument("model")
@click.option("--format", "form", type=click.Choice(list(RENDERERS)), default="text", help="How to draw it.")
@click.option(
    "--checkpoint",
    default="tiny",
    show_default=True,
    metavar="NAME|DIR|ID",
    help="A checkpoint on the model's card, a local directory, or a hub id. Weights are not fetched.",
)
def graph(model: str, form: str, checkpoint: str) -> None:
    """Draw the nodes, walks and streams of MODEL.

    \b
    Examples:
      mstar graph MODEL
      mstar graph MODEL --format mermaid > graph.mmd
      mstar graph MODEL --checkpoint ./my-checkpoint
    """
    registry = load_registry()
    card = registry.card(model)
    spec = assemble(registry, model, locate(card, checkpoint, weights=False))
    click.echo(RENDERERS[form](spec))
