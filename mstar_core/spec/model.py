"""What a plugin says of a model: the card that is listed, its configuration, and the whole specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mstar_core.spec.graph import Node, RequestInput, StreamingEdge, Walk
from mstar_core.spec.machine import StateMachine
from mstar_core.spec.params import Parameter

API = 1
"""The version of the plugin interface that this core speaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where weights come from.

    `source` is a hub id (`owner/name`), or `package:relative/path` for one inside a wheel. `files` are patterns of
    files to fetch from the hub beside configuration, tokenizer and safetensors (`("*.pt",)`).
    """

    name: str
    source: str
    summary: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A model as it is listed, before anything heavy is imported.

    `checkpoints`: the first is the default; every model offers one named `tiny` that runs on any CPU in seconds.
    `inputs` and `outputs` are modalities (`text`, `image`, `audio`, `video`, `tensor`). `routes` are the public HTTP
    routes that the model serves beside `/generate`.
    """

    name: str
    family: str
    summary: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    checkpoints: tuple[Checkpoint, ...]
    routes: tuple[str, ...] = ()
    api: int = API

    def checkpoint(self, name: str) -> Checkpoint | None:
        """The checkpoint of that name, or None."""
        return next((checkpoint for checkpoint in self.checkpoints if checkpoint.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What `mstar_config` returns: the model's own typed config (a frozen value), and its request parameters.

    `dtype` is the one that the weights are published in, which a placement of dtype `auto` keeps.
    """

    values: Any
    parameters: tuple[Parameter, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model, assembled and checked: from here on the runtime passes only this."""

    card: ModelCard
    config: ModelConfig
    nodes: tuple[Node, ...]
    walks: tuple[Walk, ...]
    edges: tuple[StreamingEdge, ...]
    inputs: tuple[RequestInput, ...]
    machine: StateMachine

    def node(self, name: str) -> Node:
        """The node of that name (which exists: the spec was validated)."""
        return next(node for node in self.nodes if node.name == name)

    def walk(self, name: str) -> Walk:
        """The walk of that name (which exists: the spec was validated)."""
        return next(walk for walk in self.walks if walk.name == name)

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions' names, in order of first appearance."""
        return tuple(dict.fromkeys(walk.partition for walk in self.walks))
