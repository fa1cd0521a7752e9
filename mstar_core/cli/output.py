"""What commands print: results to stdout, as text for people or JSON for machines; everything else to stderr."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

from mstar_core.plugins.registry import Registry
from mstar_core.plugins.report import PluginReport

C = TypeVar("C", bound="Callable[..., Any]")

NO_PLUGINS = "No plugins. A plugin is a distribution that you install with pip."
NO_MODELS = "No models. A model comes with a plugin, which is a distribution that you install with pip."

_GAP = "  "


def json_option(command: C) -> C:
    """Adds `--json` to a command, as the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")(command)


def print_json(value: object) -> None:
    """Print a value of dicts, lists and scalars."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print left-aligned columns under upper-case headers."""
    widths = [max(len(cell) for cell in column) for column in zip(headers, *rows, strict=True)]
    for row in ([header.upper() for header in headers], *rows):
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        click.echo(_GAP.join(cells).rstrip())


def warn(message: str) -> None:
    """Print a warning to stderr."""
    click.echo(f"warning: {message}", err=True)


def warn_of_plugins(registry: Registry) -> None:
    """Print what is wrong with the plugin set: bad names in the environment, and plugins that cannot be used."""
    for warning in registry.warnings:
        warn(warning)
    for report in registry.reports:
        if not report.status.healthy:
            warn("\n".join((f"plugin {report.title} is {report.status}", *explanation(report))))


def explanation(report: PluginReport) -> Iterator[str]:
    """Why a plugin is not used and what mends it, as indented lines."""
    if report.reason:
        yield f"{_GAP}{report.reason}"
    if report.remedy:
        yield f"{_GAP}to mend it: {report.remedy}"
