"""An imported plugin, and typed calls of the hooks that only a model's owner is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pluggy

from mstar_core.errors import PluginError
from mstar_core.plugins.discovery import FoundPlugin
from mstar_core.plugins.isolation import isolated
from mstar_core.plugins.report import PluginReport, Status
from mstar_core.spec.graph import Node, WalkSet
from mstar_core.spec.model import ModelCard, ModelConfig

if TYPE_CHECKING:
    from mstar_core.spec.content import Processor
    from mstar_core.spec.machine import StateMachine

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """An imported plugin. `extensions` maps each extension hook to its (name, `module:attribute`) pairs.

    The methods call one hook each. A raise becomes a `PluginError` that names plugin, version and hook.
    """

    found: FoundPlugin
    hooks: pluggy.HookRelay = field(repr=False)
    models: tuple[ModelCard, ...]
    extensions: Mapping[str, tuple[tuple[str, str], ...]]

    def report(self) -> PluginReport:
        """The report of a plugin that can be used."""
        return replace(
            self.found.report(Status.OK),
            models=tuple(card.name for card in self.models),
            extensions=tuple(f"{hook}:{name}" for hook, pairs in self.extensions.items() for name, _ in pairs),
        )

    def config(self, card: ModelCard, checkpoint: Path) -> ModelConfig:
        """The model's config, read from a checkpoint directory."""
        return self._expect(ModelConfig, "mstar_config", {"card": card, "checkpoint": checkpoint})

    def nodes(self, card: ModelCard, config: ModelConfig) -> tuple[Node, ...]:
        """The model's nodes."""
        nodes = self._ask("mstar_nodes", {"card": card, "config": config})
        return sequence_of(Node, nodes, f"plugin {self.found.title}: mstar_nodes")

    def walks(self, card: ModelCard, config: ModelConfig) -> WalkSet:
        """The model's walks and streaming edges."""
        return self._expect(WalkSet, "mstar_walks", {"card": card, "config": config})

    def state_machine(self, card: ModelCard, config: ModelConfig) -> StateMachine:
        """The model's state machine."""
        machine = self._ask("mstar_state_machine", {"card": card, "config": config})
        self._require_methods("mstar_state_machine", machine, ("start", "advance", "demand"))
        return cast("StateMachine", machine)

    def processor(self, card: ModelCard, config: ModelConfig, checkpoint: Path) -> Processor:
        """The model's processor. Called in the frontend."""
        processor = self._ask("mstar_processor", {"card": card, "config": config, "checkpoint": checkpoint})
        self._require_methods("mstar_processor", processor, ("prepare", "render"))
        return cast("Processor", processor)

    def _ask(self, hook: str, arguments: Mapping[str, object]) -> object:
        caller: pluggy.HookCaller = getattr(self.hooks, hook)
        if not caller.get_hookimpls():
            raise PluginError(f"plugin {self.found.title} registers a model and implements no {hook}")
        with isolated(f"{hook} of plugin {self.found.title}"):
            return caller(**arguments)

    def _expect(self, kind: type[T], hook: str, arguments: Mapping[str, object]) -> T:
        value = self._ask(hook, arguments)
        if not isinstance(value, kind):
            raise PluginError(f"plugin {self.found.title}: {hook} must return a {kind.__name__}, not {shown(value)}")
        return value

    def _require_methods(self, hook: str, value: object, methods: tuple[str, ...]) -> None:
        for method in methods:
            if not callable(getattr(value, method, None)):
                raise PluginError(f"plugin {self.found.title}: what {hook} returned ({shown(value)}) has no {method}()")


def sequence_of(kind: type[T], values: Any, source: str) -> tuple[T, ...]:
    """The values as a tuple; `source` (plugin and hook) is named when they are not a list or tuple of `kind`."""
    if not isinstance(values, (list, tuple)):
        raise PluginError(f"{source} must return a list or tuple of {kind.__name__}, not {shown(values)}")
    for value in values:
        if not isinstance(value, kind):
            raise PluginError(f"{source} must return {kind.__name__} values; among them is {shown(value)}")
    return tuple(values)


def shown(value: object) -> str:
    """What a hook returned instead, for an error."""
    return "None" if value is None else f"a value of type {type(value).__name__}"
