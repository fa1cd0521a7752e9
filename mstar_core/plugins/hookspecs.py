"""The hooks that a plugin implements. All are optional but `mstar_models`; each returns plain values.

A plugin is a distribution with one or more entry points in the group `mstar_core.plugins`. An entry point names a
light module of functions marked `@mstar_core.hookimpl`. Importing that module must not import torch: code is named by
`"package.module:attribute"` strings, which only the process that runs it resolves. A hook may leave out arguments that
it does not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pluggy

if TYPE_CHECKING:
    from mstar_core.spec.content import Processor
    from mstar_core.spec.graph import Node, WalkSet
    from mstar_core.spec.machine import StateMachine
    from mstar_core.spec.model import ModelCard, ModelConfig

PROJECT = "mstar"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function as the implementation of the hook of its name. Plugins write `from mstar_core import hookimpl`."""

Extensions: TypeAlias = "Sequence[tuple[str, str]]"
"""Pairs of a name and the `"package.module:attribute"` that it stands for."""

EXTENSION_HOOKS = (
    "mstar_engines",
    "mstar_chunk_policies",
    "mstar_attention_backends",
    "mstar_transports",
    "mstar_launchers",
)
"""Hooks that every plugin may implement, and that say something about the runtime instead of a model."""


@hookspec
def mstar_models() -> Sequence[ModelCard]:  # type: ignore[empty-body]
    """The models that this plugin brings. Called at every listing: milliseconds, no I/O."""


@hookspec(firstresult=True)
def mstar_config(card: ModelCard, checkpoint: Path) -> ModelConfig:  # type: ignore[empty-body]
    """The model's typed config, read from the JSON files in the directory `checkpoint`, and its request parameters."""


@hookspec(firstresult=True)
def mstar_nodes(card: ModelCard, config: ModelConfig) -> Sequence[Node]:  # type: ignore[empty-body]
    """The model's nodes. Called on the model's owner only, as are the hooks below that take a card."""


@hookspec(firstresult=True)
def mstar_walks(card: ModelCard, config: ModelConfig) -> WalkSet:  # type: ignore[empty-body]
    """The model's walks, its streaming edges, and what its requests bring."""


@hookspec(firstresult=True)
def mstar_state_machine(card: ModelCard, config: ModelConfig) -> StateMachine:  # type: ignore[empty-body]
    """The function from what has happened to a request to its next walks."""


@hookspec(firstresult=True)
def mstar_processor(card: ModelCard, config: ModelConfig, checkpoint: Path) -> Processor:  # type: ignore[empty-body]
    """What turns a request's content into tensors and tensors into content. Called in the frontend only."""


@hookspec
def mstar_engines() -> Extensions:  # type: ignore[empty-body]
    """Engines that a node may name in `Node.engine`."""


@hookspec
def mstar_chunk_policies() -> Extensions:  # type: ignore[empty-body]
    """Chunk policies that a streaming edge may be given by name."""


@hookspec
def mstar_attention_backends() -> Extensions:  # type: ignore[empty-body]
    """Attention backends that a deployer may choose."""


@hookspec
def mstar_transports() -> Extensions:  # type: ignore[empty-body]
    """Ways to move tensors between workers."""


@hookspec
def mstar_launchers() -> Extensions:  # type: ignore[empty-body]
    """Ways to start workers."""
