"""`mstar check`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import click

from mstar_core.cli.errors import FAILED
from mstar_core.cli.output import NO_PLUGINS, explanation, json_option, print_json, warn
from mstar_core.cli.probes import probe_all
from mstar_core.plugins.discovery import discover
from mstar_core.plugins.probe import Verdict
from mstar_core.plugins.report import Status, mark_duplicates, unavailable

_INDENT = "  "


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--static", is_flag=True, help="Do not read any checkpoint: judge imports and hooks only.")
@click.option(
    "--timeout", default=30.0, show_default=True, metavar="SECONDS", help="The longest that one plugin may take."
)
@json_option
def check(models: tuple[str, ...], static: bool, timeout: float, as_json: bool) -> int:
    """Examine every plugin, each in a process of its own, and the graphs of its models.

    With MODELs, only these and their plugins are judged. Exits 1 when anything needs mending.

    \b
    Examples:
      mstar check                  every plugin and every model's graph, at its tiny checkpoint
      mstar check MODEL            one model
      mstar check --static         imports and hooks only
    """
    discovery = discover()
    for warning in discovery.warnings:
        warn(warning)
    probed = probe_all(discovery.plugins, static=static, timeout=timeout)
    verdicts = _judged([*probed, *(Verdict(report=report) for report in discovery.reports)])
    if models:
        verdicts = _restricted(verdicts, models)
    sound = all(verdict.sound for verdict in verdicts)
    if as_json:
        judged = [{**asdict(verdict.report), "problems": verdict.problems} for verdict in verdicts]
        print_json({"ok": sound, "plugins": judged})
    else:
        if not verdicts:
            click.echo(NO_PLUGINS, err=True)
        for verdict in verdicts:
            click.echo("\n".join(_lines(verdict)))
    return 0 if sound else FAILED


def _judged(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts by plugin, with plugins that claim one name marked."""
    ordered = sorted(verdicts, key=lambda verdict: verdict.report.name)
    reports = mark_duplicates([verdict.report for verdict in ordered])
    return [replace(verdict, report=report) for verdict, report in zip(ordered, reports, strict=True)]


def _restricted(verdicts: Sequence[Verdict], models: Sequence[str]) -> list[Verdict]:
    """The verdicts on the plugins of these models, and on these models only."""
    reports = [verdict.report for verdict in verdicts]
    known = {model for report in reports for model in report.models}
    for model in models:
        if not any(report.may_own(model) for report in reports):
            raise unavailable(model, known, reports)
    return [
        replace(verdict, problems={model: found for model, found in verdict.problems.items() if model in models})
        for verdict in verdicts
        if any(verdict.report.may_own(model) for model in models)
    ]


def _lines(verdict: Verdict) -> Iterator[str]:
    report = verdict.report
    yield f"{report.title}: {report.status}"
    if report.status is not Status.OK:
        yield from explanation(report)
        if report.details:
            yield textwrap.indent(report.details.rstrip(), f"{_INDENT}| ")
    for model, problems in verdict.problems.items():
        yield f"{_INDENT}{model}: {'ok' if not problems else f'{len(problems)} wrong'}"
        for problem in problems:
            yield textwrap.indent(problem, _INDENT * 2)
