"""Hermetic plugin sets: only the plugins that a test names are visible, whatever else is installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pluggy

import mstar_core
from mstar_core import env
from mstar_core.plugins import hookspecs
from mstar_core.plugins.discovery import FoundPlugin
from mstar_core.plugins.manager import judge, register
from mstar_core.plugins.registry import Registry, registry_of


def registry_with(*plugins: object, version: str = "0") -> Registry:
    """A registry of the given plugins: modules, or objects whose methods are marked `@hookimpl`.

    Each is named after its module or class. Raises `PluginError` for a plugin that is wrong.
    """
    return registry_of([judge(*_registered(plugin, version)) for plugin in plugins])


def environment(directories: Sequence[Path], plugins: Sequence[str]) -> dict[str, str]:
    """Environment variables for a process that sees the `plugins` installed in `directories`, first on its path.

    Other plugins of this machine are kept out by MSTAR_PLUGINS.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(env.PREFIX)}
    core = Path(mstar_core.__file__).parent.parent
    path = os.pathsep.join(str(directory) for directory in (*directories, core))
    return {**inherited, "PYTHONPATH": path, env.PLUGINS.name: ",".join(plugins)}


def _registered(plugin: object, version: str) -> tuple[FoundPlugin, pluggy.PluginManager]:
    name = getattr(plugin, "__name__", type(plugin).__name__)
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    register(manager, plugin, name)
    return FoundPlugin(name=env.canonical_name(name), version=version, entries=(), path=""), manager
