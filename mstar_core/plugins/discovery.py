"""Which plugins are installed, from their metadata alone: nothing is imported here.

The walk goes over the directories of the path, and over the distributions in each, one by one: a copy whose metadata
cannot be read costs that copy and nothing else. Several copies of one distribution are told apart, so that an empty or
stale one does not hide the one that works.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from importlib_metadata import PathDistribution

import mstar_core
from mstar_core import env
from mstar_core.env import canonical_name
from mstar_core.errors import nearest
from mstar_core.plugins.report import PluginReport, Status

GROUP = "mstar_core.plugins"
"""The entry-point group of plugins."""

CORE = "mstar-core"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlugin:
    """A plugin known by its metadata. `entries` are (entry point's name, `package.module`) pairs."""

    name: str
    version: str
    entries: tuple[tuple[str, str], ...]
    path: str

    @property
    def title(self) -> str:
        """Name and version, as errors print them."""
        return f"{self.name} {self.version}"

    def report(self, status: Status, reason: str = "", remedy: str = "", details: str = "") -> PluginReport:
        """A report on this plugin."""
        return PluginReport(
            name=self.name,
            version=self.version,
            status=status,
            reason=reason,
            remedy=remedy,
            path=self.path,
            entries=tuple(name for name, _ in self.entries),
            details=details,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What the walk found: plugins to import, reports on those that will not be, and warnings worth a line."""

    plugins: tuple[FoundPlugin, ...]
    reports: tuple[PluginReport, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """One metadata directory. `found` is None unless the copy is a plugin; `flaw` says why it cannot be used."""

    directory: Path
    found: FoundPlugin | None
    flaw: str = ""
    mismatch: str = ""


def discover(path: Sequence[str] | None = None) -> Discovery:
    """Walk the distributions on `path` (default: `sys.path`), in its order, and judge each by its metadata."""
    allowed, denied = env.PLUGINS.get(), env.BLOCK_PLUGINS.get()
    plugins: list[FoundPlugin] = []
    reports: list[PluginReport] = []
    copies_by_name = _copies_by_name(sys.path if path is None else path)
    for name, copies in sorted(copies_by_name.items()):
        found, judged = _judge(name, copies, _blocked(name, allowed, denied))
        plugins += [found] if found else []
        reports += judged
    warnings = [
        f"{variable.name} names {name!r}, which is not installed{nearest(name, copies_by_name)}"
        for variable, names in ((env.PLUGINS, allowed or ()), (env.BLOCK_PLUGINS, denied))
        for name in sorted(names)
        if name not in copies_by_name
    ]
    return Discovery(plugins=tuple(plugins), reports=tuple(reports), warnings=tuple(warnings))


def _blocked(name: str, allowed: frozenset[str] | None, denied: frozenset[str]) -> tuple[str, str] | None:
    if name in denied:
        return f"{env.BLOCK_PLUGINS.name} names it", env.set_command(env.BLOCK_PLUGINS.name, denied - {name})
    if allowed is not None and name not in allowed:
        return f"{env.PLUGINS.name} does not name it", env.set_command(env.PLUGINS.name, allowed | {name})
    return None


def _copies_by_name(path: Sequence[str]) -> dict[str, list[_Copy]]:
    """Every copy of each distribution of which at least one copy is a plugin."""
    everything: dict[str, list[_Copy]] = {}
    for directory in _metadata_directories(path):
        name = canonical_name(directory.stem.partition("-")[0])
        everything.setdefault(name, []).append(_read(name, directory))
    return {name: copies for name, copies in everything.items() if any(copy.found for copy in copies)}


def _metadata_directories(path: Sequence[str]) -> Iterator[Path]:
    for root in dict.fromkeys(os.path.realpath(entry) for entry in path):
        try:
            names = sorted(os.listdir(root))
        except OSError:  # a path entry may be a zip file, missing, or closed to us; imports pass over it too
            continue
        yield from (Path(root, name) for name in names if name.endswith((".dist-info", ".egg-info")))


def _read(name: str, directory: Path) -> _Copy:
    distribution = PathDistribution(directory)
    found: FoundPlugin | None = None
    try:
        if GROUP not in (distribution.read_text("entry_points.txt") or ""):
            return _Copy(directory=directory, found=None, flaw="it declares no plugin")
        found = FoundPlugin(name=name, version="unknown", entries=(), path=str(directory))
        entries = tuple((entry.name, entry.value) for entry in distribution.entry_points.select(group=GROUP))
        if not entries:
            return _Copy(directory=directory, found=None, flaw="it declares no plugin")
        found = FoundPlugin(name=name, version=distribution.version, entries=entries, path=str(directory))
        return _Copy(
            directory=directory,
            found=found,
            flaw=_absent_code(distribution, entries),
            mismatch=_excluded_core(distribution.requires or ()),
        )
    except Exception as error:  # metadata that somebody garbled may make the parsers raise anything
        return _Copy(directory=directory, found=found, flaw=f"its metadata cannot be read: {error}")


def _absent_code(distribution: PathDistribution, entries: Sequence[tuple[str, str]]) -> str:
    """Why the copy is stale: its RECORD lists an entry point's module, and the file is gone."""
    recorded = {line.partition(",")[0] for line in (distribution.read_text("RECORD") or "").splitlines()}
    for _, target in entries:
        module = target.partition(":")[0].strip().replace(".", "/")
        files = recorded & {f"{module}.py", f"{module}/__init__.py"}
        gone = [file for file in files if not os.path.exists(str(distribution.locate_file(file)))]
        if gone:
            return f"{gone[0]}, which it installed, is gone"
    return ""


def _excluded_core(requirements: Sequence[str]) -> str:
    """The requirement on the core that this core does not meet, or an empty string."""
    ours = [text for text in requirements if canonical_name(re.split(r"[^\w.-]", text)[0]) == CORE]
    if not ours:
        return ""
    from packaging.requirements import Requirement  # here, since its import takes a tenth of a listing's time

    for text in ours:
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and not requirement.specifier.contains(mstar_core.__version__, prereleases=True):
            return f"{CORE}{requirement.specifier}"
    return ""


def _judge(
    name: str, copies: Sequence[_Copy], blocked: tuple[str, str] | None
) -> tuple[FoundPlugin | None, list[PluginReport]]:
    """The copy to import, if any, and a report on everything else of that name."""
    candidates = [copy for copy in copies if copy.found]
    chosen = next((copy for copy in candidates if not copy.flaw), candidates[0])
    found = chosen.found
    assert found is not None
    if blocked:
        return None, [found.report(Status.BLOCKED, *blocked)]
    reports = [_shadowed(name, copy, chosen) for copy in copies if copy is not chosen]
    if chosen.flaw:
        reports.insert(0, found.report(Status.BROKEN, chosen.flaw, f"pip install --force-reinstall {name}"))
        return None, reports
    if chosen.mismatch:
        reason = f"wanted {chosen.mismatch}, found {CORE} {mstar_core.__version__}"
        reports.insert(0, found.report(Status.INCOMPATIBLE, reason, upgrade(name)))
        return None, reports
    return found, reports


def upgrade(name: str) -> str:
    """The command that brings a plugin and the core to versions that fit each other."""
    return f"pip install --upgrade {CORE} {name}"


def _shadowed(name: str, copy: _Copy, chosen: _Copy) -> PluginReport:
    if copy.flaw:
        reason = f"a left-over copy at {copy.directory} ({copy.flaw}); {chosen.directory} is used"
        remedy = f"rm -r {shlex.quote(str(copy.directory))}"
    else:
        reason = f"a second copy at {copy.directory}; {chosen.directory}, earlier on the path, is used"
        remedy = f"pip uninstall -y {name} && pip install {name}"
    return PluginReport(
        name=name,
        version=copy.found.version if copy.found else "unknown",
        status=Status.SHADOWED,
        reason=reason,
        remedy=remedy,
        path=str(copy.directory),
    )
