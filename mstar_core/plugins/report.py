"""What became of each plugin: one frozen value a plugin, from which listings, `mstar check` and errors are made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from mstar_core.env import block_command
from mstar_core.errors import PluginError, UnknownModel, nearest


class Status(StrEnum):
    """What became of a plugin."""

    OK = "ok"
    BLOCKED = "blocked"
    """Kept out by MSTAR_PLUGINS or MSTAR_BLOCK_PLUGINS; never imported."""
    BROKEN = "broken"
    """Its import or one of its hooks raised, or a hook returned the wrong thing."""
    INCOMPATIBLE = "incompatible"
    """It is made for another version of the core or of the plugin interface."""
    DUPLICATE = "duplicate"
    """Another plugin claims the same name; for that name neither is used, for its other names it is."""
    SHADOWED = "shadowed"
    """A second, stale or empty copy of an installed distribution; the other copy is used."""

    @property
    def healthy(self) -> bool:
        """Whether nothing needs mending for models to be served: `ok`, kept out on purpose, or a mere left-over."""
        return self in (Status.OK, Status.BLOCKED, Status.SHADOWED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """One plugin (a distribution), or one copy of it.

    `reason` says what is wrong and `remedy` is the command that mends it; both are empty for `ok`. `path` is the
    distribution's metadata directory, `entries` the names of its entry points. `models` are the names that it
    registers, `extensions` its `hook:name` pairs. `details` is a traceback for the plugin's author.
    """

    name: str
    version: str
    status: Status = Status.OK
    reason: str = ""
    remedy: str = ""
    path: str = ""
    entries: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    details: str = ""

    @property
    def title(self) -> str:
        """Name and version, as errors print them."""
        return f"{self.name} {self.version}"

    def may_own(self, model: str) -> bool:
        """Whether a model of that name is, or by the plugin's names probably would be, this plugin's."""
        names = {self.name, self.name.removeprefix("mstar-"), *self.entries, *self.models}
        return model in names


def mark_duplicates(reports: Sequence[PluginReport]) -> tuple[PluginReport, ...]:
    """The reports, with status `duplicate` for every healthy plugin that shares a model's or an extension's name."""
    clashes: defaultdict[str, list[str]] = defaultdict(list)
    for claim, owners in contested(reports).items():
        for owner in owners:
            others = ", ".join(other.title for other in owners if other is not owner)
            clashes[owner.name].append(f"{claim} is also claimed by {others}, so neither is used")
    return tuple(
        replace(
            report,
            status=Status.DUPLICATE,
            reason="; ".join(clashes[report.name]),
            remedy=block_command(report.name),
        )
        if report.status is Status.OK and report.name in clashes
        else report
        for report in reports
    )


def contested(reports: Iterable[PluginReport]) -> Mapping[str, Sequence[PluginReport]]:
    """Claims (`model 'x'`, `mstar_engines 'y'`) that more than one usable plugin makes, with those plugins."""
    claims: defaultdict[str, list[PluginReport]] = defaultdict(list)
    for report in reports:
        if report.status in (Status.OK, Status.DUPLICATE):
            for claim in _claims(report):
                claims[claim].append(report)
    return {claim: owners for claim, owners in claims.items() if len(owners) > 1}


def unavailable(model: str, served: Iterable[str], reports: Sequence[PluginReport]) -> PluginError:
    """The error for a model that nobody serves: its plugin's own reason, or the nearest name among those `served`."""
    rivals = contested(reports).get(f"model {model!r}", ())
    if rivals:
        return PluginError(
            f"model {model!r} is registered by {' and '.join(rival.title for rival in rivals)}; neither is used."
            f" Keep one of them out: {' or '.join(rival.remedy for rival in rivals)}"
        )
    unusable = [report for report in reports if report.status not in (Status.OK, Status.DUPLICATE, Status.SHADOWED)]
    for report in unusable:
        if report.may_own(model):
            return PluginError(
                f"model {model!r} is not available: plugin {report.title} is {report.status}: {report.reason}."
                f" To mend it: {report.remedy}"
            )
    names = sorted(served)
    listed = f"; available: {', '.join(names)}" if names else "; no plugin that is installed registers a model"
    suspects = [f"{report.title}: {report.reason}" for report in unusable if not report.status.healthy]
    unseen = f". Plugins that could not be used: {'; '.join(suspects)}" if suspects else ""
    return UnknownModel(f"unknown model {model!r}{nearest(model, names)}{listed}{unseen}")


def _claims(report: PluginReport) -> Iterable[str]:
    for model in report.models:
        yield f"model {model!r}"
    for extension in report.extensions:
        hook, _, name = extension.partition(":")
        yield f"{hook} {name!r}"
