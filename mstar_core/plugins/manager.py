"""One plugin at a time: import it, check what it implements, ask it for its models and extensions.

Each plugin gets a pluggy manager of its own, so that a call reaches exactly one plugin, and what it raises is that
plugin's.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import pluggy

import mstar_core
from mstar_core.errors import MStarError, PluginError, nearest
from mstar_core.plugins import hookspecs
from mstar_core.plugins.discovery import CORE, FoundPlugin, upgrade
from mstar_core.plugins.isolation import isolated, traceback_of
from mstar_core.plugins.loaded import LoadedPlugin, sequence_of
from mstar_core.plugins.report import PluginReport, Status
from mstar_core.spec.model import API, ModelCard

T = TypeVar("T")

HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("mstar_"))
"""The hooks' names."""


def load(found: FoundPlugin) -> LoadedPlugin | PluginReport:
    """Import a plugin and ask it for its models and extensions; a report instead when it cannot be used."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        for _, target in found.entries:
            _import(manager, target)
        return judge(found, manager)
    except MStarError as error:
        cause = error.__cause__ if isinstance(error, PluginError) else error
        remedy = f"pip install --upgrade --force-reinstall {found.name}"
        return found.report(Status.BROKEN, str(error), remedy, traceback_of(cause))


def judge(found: FoundPlugin, manager: pluggy.PluginManager) -> LoadedPlugin | PluginReport:
    """The plugin whose hooks are registered with `manager`, or a report that it speaks another plugin interface.

    Raises `PluginError` when a hook raises or returns the wrong thing.
    """
    plugin = LoadedPlugin(found, manager.hook, models=_cards(found, manager), extensions=_extensions(found, manager))
    foreign = [card.api for card in plugin.models if card.api != API]
    if foreign:
        reason = f"wanted plugin interface {foreign[0]}, found {API} ({CORE} {mstar_core.__version__})"
        return replace(plugin.report(), status=Status.INCOMPATIBLE, reason=reason, remedy=upgrade(found.name))
    return plugin


def register(manager: pluggy.PluginManager, holder: object, name: str) -> None:
    """Register the hooks of a module or object. Refuses a marked function that is no hook, a hook that is not marked,
    and arguments that a hook does not have, each with a `PluginError`."""
    for attribute in dir(holder):
        options = manager.parse_hookimpl_opts(holder, attribute)
        hook = (options and options.get("specname")) or attribute
        if options and hook not in HOOKS and not options.get("optionalhook"):
            raise PluginError(f"{name} implements {hook!r}, which is no hook{nearest(hook, HOOKS)}")
        if options is None and attribute in HOOKS:
            raise PluginError(f"{name}: {attribute} is not marked; write @mstar_core.hookimpl above it")
    try:
        manager.register(holder, name)
    except pluggy.PluginValidationError as error:
        raise PluginError(" ".join(str(error).split())) from error


def _import(manager: pluggy.PluginManager, target: str) -> None:
    module, _, attribute = target.partition(":")
    with isolated(f"import of {target}"):
        holder: object = importlib.import_module(module.strip())
        for part in filter(None, attribute.strip().split(".")):
            holder = getattr(holder, part)
        register(manager, holder, target)


def _cards(found: FoundPlugin, manager: pluggy.PluginManager) -> tuple[ModelCard, ...]:
    cards = _items(found, manager, "mstar_models", ModelCard)
    names = [card.name for card in cards]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PluginError(f"mstar_models returns two cards named {twice[0]!r}")
    return cards


def _extensions(found: FoundPlugin, manager: pluggy.PluginManager) -> Mapping[str, tuple[tuple[str, str], ...]]:
    extensions = {hook: _items(found, manager, hook, tuple) for hook in hookspecs.EXTENSION_HOOKS}
    for hook, pairs in extensions.items():
        for pair in pairs:
            if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
                raise PluginError(f"{hook} must return (name, 'package.module:attribute') pairs, not {pair!r}")
    return {hook: pairs for hook, pairs in extensions.items() if pairs}


def _items(found: FoundPlugin, manager: pluggy.PluginManager, hook: str, kind: type[T]) -> tuple[T, ...]:
    """Everything that a hook returns, over the plugin's entry points."""
    action = f"{hook} of plugin {found.title}"
    with isolated(action):
        results = getattr(manager.hook, hook)()
    return tuple(item for result in results for item in sequence_of(kind, result, action))
