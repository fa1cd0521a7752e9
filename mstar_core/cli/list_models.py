"""`mstar list-models`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from mstar_core.cli.output import NO_MODELS, json_option, print_json, print_table, warn_of_plugins
from mstar_core.plugins.registry import Registry, load_registry


@click.command("list-models")
@json_option
def list_models(as_json: bool) -> None:
    """List the models that can be served.

    Plugins that cannot be used are named on stderr; they keep no other plugin from being listed.

    \b
    Examples:
      mstar list-models
      mstar list-models --json | jq -r '.models[].name'
    """
    registry = load_registry()
    if as_json:
        print_json(as_data(registry))
        return
    warn_of_plugins(registry)
    rows = [
        (
            card.name,
            ", ".join(card.inputs),
            ", ".join(card.outputs),
            ", ".join(checkpoint.name for checkpoint in card.checkpoints),
            registry.owner(card.name).found.title,
        )
        for card in registry.cards
    ]
    if rows:
        print_table(("model", "in", "out", "checkpoints", "plugin"), rows)
    else:
        click.echo(NO_MODELS, err=True)


def as_data(registry: Registry) -> dict[str, Any]:
    """`models` with their plugins, and the `problems` of plugins that cannot be used."""
    owners = {card.name: registry.owner(card.name).found for card in registry.cards}
    return {
        "models": [
            {**asdict(card), "plugin": owners[card.name].name, "version": owners[card.name].version}
            for card in registry.cards
        ],
        "problems": [asdict(report) for report in registry.reports if not report.status.healthy],
    }
