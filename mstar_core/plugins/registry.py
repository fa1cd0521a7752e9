"""All plugins of this process together: which model belongs to which plugin, and why the others are not used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import mstar_core
from mstar_core.errors import PluginError, nearest
from mstar_core.plugins.discovery import discover
from mstar_core.plugins.loaded import LoadedPlugin
from mstar_core.plugins.manager import load
from mstar_core.plugins.plugin_set import PluginSet
from mstar_core.plugins.report import PluginReport, contested, mark_duplicates, unavailable
from mstar_core.spec.model import ModelCard


@dataclass(frozen=True, slots=True)
class Registry:
    """The plugins in use, and a report on every plugin, used or not. `warnings` are worth a line to the user."""

    plugins: tuple[LoadedPlugin, ...]
    reports: tuple[PluginReport, ...]
    warnings: tuple[str, ...] = ()

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """The models that can be asked for, by name."""
        refused = contested(self.reports)
        cards = [card for plugin in self.plugins for card in plugin.models if f"model {card.name!r}" not in refused]
        return tuple(sorted(cards, key=lambda card: card.name))

    @property
    def plugin_set(self) -> PluginSet:
        """What a parent hands to its workers, and a worker compares with its own."""
        used = sorted((plugin.found.name, plugin.found.version) for plugin in self.plugins)
        return PluginSet(core=mstar_core.__version__, plugins=tuple(used))

    def card(self, model: str) -> ModelCard:
        """The card of a model; raises `PluginError` with the reason, or `UnknownModel` with the nearest name."""
        cards = {card.name: card for card in self.cards}
        if model not in cards:
            raise unavailable(model, cards, self.reports)
        return cards[model]

    def owner(self, model: str) -> LoadedPlugin:
        """The plugin that registers a model; raises as `card` does."""
        card = self.card(model)
        return next(plugin for plugin in self.plugins if card in plugin.models)

    def extension(self, hook: str, name: str, core: Mapping[str, str]) -> str:
        """The `package.module:attribute` behind a name of an extension hook, such as an engine's.

        `core` are the names that the core brings itself. A name that two parties claim is refused, naming both.
        """
        claims = [(plugin.found.title, target) for plugin in self.plugins for target in _targets(plugin, hook, name)]
        claims += [("mstar-core", core[name])] if name in core else []
        if len(claims) > 1:
            raise PluginError(f"{hook}: {name!r} is claimed by {' and '.join(title for title, _ in claims)}")
        if not claims:
            known = sorted(self.extension_names(hook).union(core))
            raise PluginError(f"{hook}: unknown name {name!r}{nearest(name, known)}; known: {', '.join(known)}")
        return claims[0][1]

    def extension_names(self, hook: str) -> frozenset[str]:
        """The names that plugins bring through an extension hook."""
        return frozenset(name for plugin in self.plugins for name, _ in plugin.extensions.get(hook, ()))


def load_registry(path: Sequence[str] | None = None) -> Registry:
    """Find, import and ask every installed plugin, each in isolation. Never raises for a plugin's sake.

    Raises `ConfigurationError` when MSTAR_PLUGINS or MSTAR_BLOCK_PLUGINS cannot be read.
    """
    discovery = discover(path)
    outcomes = [load(found) for found in discovery.plugins]
    return registry_of(outcomes, discovery.reports, discovery.warnings)


def registry_of(
    outcomes: Iterable[LoadedPlugin | PluginReport],
    reports: Sequence[PluginReport] = (),
    warnings: tuple[str, ...] = (),
) -> Registry:
    """A registry of what `load` returned for each plugin, and reports on those that were never imported."""
    results = list(outcomes)
    plugins = tuple(result for result in results if isinstance(result, LoadedPlugin))
    judged = [result.report() if isinstance(result, LoadedPlugin) else result for result in results]
    ordered = sorted([*judged, *reports], key=lambda report: report.name)
    return Registry(plugins, mark_duplicates(ordered), warnings)


def _targets(plugin: LoadedPlugin, hook: str, name: str) -> list[str]:
    return [target for known, target in plugin.extensions.get(hook, ()) if known == name]
