"""Placement: which worker runs which node in which walk, and with how much memory. Written by the deployer as YAML.

    workers:
      main: {device: cpu, threads: 2}
    models:
      speaker: {checkpoint: tiny, weight: 1, running: 64, waiting: 256}
    groups:
      - nodes: [lm]
        worker: main
        dtype: bfloat16
        kv: {tokens: 65536, page: 16}
        batch: {requests: 32, tokens: 2048}

Nodes that no group names run on the first worker with the defaults. Unknown keys are refused with file, line and key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from mstar_core.errors import PlacementError, nearest
from mstar_core.spec.graph import runs
from mstar_core.spec.model import ModelSpec

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class WorkerPlace(_Strict):
    """One worker: its device (`auto`: CUDA where there is one, else the CPU), its CPU threads (0: torch's choice)."""

    device: str = "auto"
    threads: int = Field(default=0, ge=0)

    @field_validator("device")
    @classmethod
    def _known(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise ValueError(f"{device!r} is no device; use auto, cpu, cuda or cuda:N")
        return device


class KVPlace(_Strict):
    """A KV pool: how many tokens it holds over all requests, and how many share a page."""

    tokens: int = Field(default=65536, ge=1)
    page: int = Field(default=16, ge=1)


class BatchPlace(_Strict):
    """The most that one batch of a node holds."""

    requests: int = Field(default=32, ge=1)
    tokens: int = Field(default=2048, ge=1)


class NodeGroup(_Strict):
    """Nodes of one model that run on one worker in the same way. `model` may be left out where one model is served.

    `compile` runs decode steps faster: on a CPU with kernels compiled on this machine, which needs a C++ compiler; on
    CUDA from recorded graphs.
    """

    nodes: tuple[str, ...] = Field(min_length=1, strict=False)
    model: str | None = None
    walks: tuple[str, ...] = Field(default=(), strict=False)
    worker: str | None = None
    dtype: Dtype = "auto"
    kv: KVPlace = KVPlace()
    batch: BatchPlace = BatchPlace()
    compile: bool = False
    tp: int = Field(default=1, ge=1)


class ModelPlace(_Strict):
    """One model: its checkpoint, its share of the workers' turns, how many requests run and how many may wait."""

    checkpoint: str | None = None
    weight: float = Field(default=1.0, gt=0, strict=False)
    running: int = Field(default=64, ge=1)
    waiting: int = Field(default=256, ge=0)


class Placement(_Strict):
    """The whole file. `run_ahead` lets a worker start a loop's next round before it has seen the present one's end."""

    workers: dict[str, WorkerPlace] = Field(default_factory=lambda: {"main": WorkerPlace()}, min_length=1)
    models: dict[str, ModelPlace] = Field(default_factory=dict)
    groups: tuple[NodeGroup, ...] = Field(default=(), strict=False)
    run_ahead: bool = True

    def model(self, name: str) -> ModelPlace:
        """A model's place, or the defaults."""
        return self.models.get(name, ModelPlace())

    def group(self, model: str, node: str) -> NodeGroup:
        """The group that a node belongs to, or the defaults."""
        for group in self.groups:
            if group.model in (None, model) and node in group.nodes:
                return group
        return NodeGroup(nodes=(node,))

    def worker(self, model: str, node: str) -> str:
        """The worker that runs a node."""
        return self.group(model, node).worker or next(iter(self.workers))


def load_placement(path: Path) -> Placement:
    """Read and validate a placement file; raises one `PlacementError` with file, line and key of every mistake."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlacementError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_placement(text, str(path))


def parse_placement(text: str, source: str) -> Placement:
    """Parse YAML text; `source` stands in error messages."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise PlacementError(f"{source}:{line}: this is no YAML: {error.problem}") from error
    try:
        return Placement.model_validate({} if values is None else values)
    except ValidationError as error:
        lines = [_problem(source, tree, each) for each in error.errors()]
        raise PlacementError("\n".join(lines)) from error


def check_placement(placement: Placement, specs: Sequence[ModelSpec], source: str = "placement") -> None:
    """Check a placement's names against the models that will be served."""
    problems = [*_check_models(placement, specs), *_check_groups(placement, specs)]
    if problems:
        raise PlacementError("\n".join(f"{source}: {problem}" for problem in problems))


def _check_models(placement: Placement, specs: Sequence[ModelSpec]) -> Iterator[str]:
    names = [spec.card.name for spec in specs]
    for name in placement.models:
        if name not in names:
            yield f"models.{name}: no such model is served{nearest(name, names)}; served are {', '.join(names)}"


def _check_groups(placement: Placement, specs: Sequence[ModelSpec]) -> Iterator[str]:
    claimed: set[tuple[str, str, str]] = set()
    for index, group in enumerate(placement.groups):
        place = f"groups[{index}]"
        spec = _spec_of(group, specs)
        if spec is None:
            served = ", ".join(spec.card.name for spec in specs)
            yield f"{place}.model: {group.model or 'missing'}; several models or others are served: {served}"
            continue
        if group.worker is not None and group.worker not in placement.workers:
            yield f"{place}.worker: no worker {group.worker!r}{nearest(group.worker, placement.workers)}"
        yield from _check_nodes(place, group, spec)
        for node in group.nodes:
            for walk in group.walks or ("",):
                if (spec.card.name, node, walk) in claimed:
                    yield f"{place}.nodes: {node!r} is placed twice"
                claimed.add((spec.card.name, node, walk))


def _check_nodes(place: str, group: NodeGroup, spec: ModelSpec) -> Iterator[str]:
    nodes = [node.name for node in spec.nodes]
    walks = {walk.name: {run.node for run in runs(walk.body)} for walk in spec.walks}
    for node in group.nodes:
        if node not in nodes:
            yield f"{place}.nodes: model {spec.card.name!r} has no node {node!r}{nearest(node, nodes)}"
    for walk in group.walks:
        if walk not in walks:
            yield f"{place}.walks: model {spec.card.name!r} has no walk {walk!r}{nearest(walk, walks)}"
        elif not walks[walk] & set(group.nodes):
            yield f"{place}.walks: walk {walk!r} runs none of {', '.join(group.nodes)}"


def _spec_of(group: NodeGroup, specs: Sequence[ModelSpec]) -> ModelSpec | None:
    if group.model is None:
        return specs[0] if len(specs) == 1 else None
    return next((spec for spec in specs if spec.card.name == group.model), None)


def _problem(source: str, tree: Any, error: Mapping[str, Any]) -> str:
    """One validation error as `file:line: key: what is wrong (nearest right key)`."""
    location = error["loc"]
    message, hint = error["msg"], ""
    if error["type"] == "extra_forbidden":
        keys = _keys_at(location[:-1])
        message = f"unknown key; known are {', '.join(keys)}" if keys else "unknown key"
        hint = nearest(str(location[-1]), keys)
    return f"{source}:{_line(tree, location)}: {'.'.join(map(str, location)) or 'file'}: {message}{hint}"


def _line(tree: Any, location: Sequence[int | str]) -> int:
    """The line of a key in the composed YAML tree (the deepest part of the path that exists)."""
    node, line = tree, 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, node = key.start_mark.line + 1, value
                    break
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


def _keys_at(location: Sequence[int | str]) -> list[str]:
    """The keys that the schema knows at a path."""
    kinds: dict[str, type[BaseModel]] = {
        "workers": WorkerPlace,
        "models": ModelPlace,
        "groups": NodeGroup,
        "kv": KVPlace,
        "batch": BatchPlace,
    }
    named = [part for part in location if isinstance(part, str) and part in kinds]
    return list((kinds[named[-1]] if named else Placement).model_fields)
