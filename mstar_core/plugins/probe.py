"""The process in which `mstar check` examines one plugin, so that one that ends or hangs its process takes only this.

    python -m mstar_core.plugins.probe JOB RESULT

reads a `Job` from one file and writes a `Verdict` to the other, both as JSON. What
the plugin prints does not matter. No result file means that the process ended before the plugin was judged.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mstar_core.errors import MStarError
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.plugins.discovery import FoundPlugin
from mstar_core.plugins.loaded import LoadedPlugin
from mstar_core.plugins.manager import load
from mstar_core.plugins.registry import Registry, registry_of
from mstar_core.plugins.report import PluginReport, Status
from mstar_core.spec.explore import explore
from mstar_core.spec.model import ModelSpec

TINY = "tiny"
"""The checkpoint that every model offers; it ships in the plugin's wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The plugin to examine. A `static` examination reads no checkpoint."""

    found: FoundPlugin
    static: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the examination of a plugin found. `problems` maps each model to what is wrong with it."""

    report: PluginReport
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Whether nothing needs mending."""
        return self.report.status.healthy and not any(self.problems.values())


def examine(found: FoundPlugin, *, static: bool) -> Verdict:
    """Import a plugin in this process and judge it, and (unless `static`) each of its models' graphs."""
    loaded_before = "torch" in sys.modules
    plugin = load(found)
    if not isinstance(plugin, LoadedPlugin):
        return Verdict(report=plugin)
    if "torch" in sys.modules and not loaded_before:
        reason = "importing it loads torch; name heavy modules as 'package.module:attribute' instead of importing them"
        remedy = f"python -X importtime -c 'import {found.entries[0][1].partition(':')[0]}'"
        return Verdict(report=found.report(Status.BROKEN, reason, remedy))
    registry = registry_of([plugin])
    problems = {card.name: () if static else tuple(model_problems(registry, card.name)) for card in plugin.models}
    return Verdict(report=plugin.report(), problems=problems)


def model_problems(registry: Registry, model: str) -> Iterator[str]:
    """What is wrong with a model's graph and its state machine, at its tiny checkpoint's configuration."""
    try:
        spec = assemble(registry, model, locate(registry.card(model), TINY, weights=False))
    except MStarError as error:
        yield "\n".join((str(error), *getattr(error, "__notes__", ())))
        return
    yield from _absent_factories(spec)
    yield from explore(spec)


def _absent_factories(spec: ModelSpec) -> Iterator[str]:
    """Nodes whose factory names a module that is not there; the module itself is not imported."""
    for node in spec.nodes:
        if isinstance(node.factory, str) and not _exists(node.factory.partition(":")[0]):
            yield f"node {node.name!r}: its factory {node.factory!r} names a module that does not exist"


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is absent
        return False


def main(job_file: str, result_file: str) -> None:
    """Examine the plugin of a job file."""
    job = msgspec.json.decode(Path(job_file).read_bytes(), type=Job)
    Path(result_file).write_bytes(msgspec.json.encode(examine(job.found, static=job.static)))


if __name__ == "__main__":
    main(*sys.argv[1:])
