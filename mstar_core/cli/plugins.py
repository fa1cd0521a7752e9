"""`mstar plugins`."""

from __future__ import annotations

from dataclasses import asdict

import click

from mstar_core.cli.output import NO_PLUGINS, explanation, json_option, print_json, print_table, warn
from mstar_core.plugins.registry import load_registry
from mstar_core.plugins.report import Status


@click.command()
@json_option
def plugins(as_json: bool) -> None:
    """List the installed plugins, and what is wrong with them.

    \b
    A plugin's status is one of
      ok            its models can be served
      blocked       kept out by MSTAR_PLUGINS or MSTAR_BLOCK_PLUGINS
      broken        its import or a hook failed
      incompatible  it is made for another version of mstar-core
      duplicate     another plugin claims the same name; neither is used for it
      shadowed      a second or left-over copy of a distribution; the other is used

    \b
    Examples:
      mstar plugins
      mstar plugins --json
      MSTAR_BLOCK_PLUGINS=mstar-x mstar plugins
    """
    registry = load_registry()
    if as_json:
        print_json({"digest": registry.plugin_set.digest, "plugins": [asdict(report) for report in registry.reports]})
        return
    for warning in registry.warnings:
        warn(warning)
    rows = [(report.name, report.version, str(report.status), ", ".join(report.models)) for report in registry.reports]
    if not rows:
        click.echo(NO_PLUGINS, err=True)
        return
    print_table(("plugin", "version", "status", "models"), rows)
    for report in registry.reports:
        if report.status is not Status.OK:
            click.echo("\n".join((f"\n{report.title} is {report.status}", *explanation(report))))
