"""Placement: which worker runs which node in which walk, and with how much memory. Written by the deployer as YAML.

    workers:
      first: {device: cpu, threads: 2}
      second: {device: cpu, threads: 1}
    models:
      speaker: {checkpoint: tiny, weight: 1, running: 64, waiting: 256, deadline: 600}
    groups:
      - nodes: [lm]
        walks: [prefill]          # left out: every walk that runs the nodes
        worker: first
        dtype: bfloat16
        kv: {tokens: 65536, page: 16}
        batch: {requests: 32, tokens: 2048}
      - nodes: [lm]
        walks: [decode]
        worker: [second, third]   # replicas: a request stays with the one that it was given

A node may be in several groups with different walks: what it holds for a request moves along. Nodes that no group names
run on the first worker with the defaults. Workers on other hosts name one of `hosts`, where `mstar host` runs. Unknown
keys are refused with file, line and key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from mstar_core.errors import PlacementError, nearest
from mstar_core.spec.graph import runs
from mstar_core.spec.model import ModelSpec

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class WorkerPlace(_Strict):
    """One worker: its device (`auto`: CUDA where there is one, else the CPU), its CPU threads (0: torch's choice), its
    host (default: the server's), and the most MiB of memory that it shares with others at one time."""

    device: str = "auto"
    threads: int = Field(default=0, ge=0)
    host: str | None = None
    shared: int = Field(default=256, ge=1)

    @field_validator("device")
    @classmethod
    def _known(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise ValueError(f"{device!r} is no device; use auto, cpu, cuda or cuda:N")
        return device


class HostPlace(_Strict):
    """Another host: the address on which its `mstar host` listens."""

    address: str

    @field_validator("address")
    @classmethod
    def _known(cls, address: str) -> str:
        return _tcp(address)


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

    `compile` runs steps faster: on a CPU with kernels compiled on this machine, which needs a C++ compiler; on CUDA
    from recorded graphs. `auto` compiles kernels for a CPU where they never slow a step down and there is a compiler.
    With several workers each is a replica, and a request gets the one with the fewest.
    """

    nodes: tuple[str, ...] = Field(min_length=1, strict=False)
    model: str | None = None
    walks: tuple[str, ...] = Field(default=(), strict=False)
    worker: str | Annotated[tuple[str, ...], Field(strict=False)] = ()
    dtype: Dtype = "auto"
    kv: KVPlace = KVPlace()
    batch: BatchPlace = BatchPlace()
    compile: bool | Literal["auto"] = "auto"
    tp: int = Field(default=1, ge=1)

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that are named, if any."""
        return (self.worker,) if isinstance(self.worker, str) else self.worker


class ModelPlace(_Strict):
    """One model: its checkpoint, its share of the workers' turns, how many requests run and how many may wait, how many
    seconds a request may take from its arrival (None: as long as it needs), and nodes that are not run.

    What only walks with an omitted node make cannot be asked for then.
    """

    checkpoint: str | None = None
    weight: float = Field(default=1.0, gt=0, strict=False)
    running: int = Field(default=64, ge=1)
    waiting: int = Field(default=256, ge=0)
    deadline: float | None = Field(default=None, gt=0, strict=False)
    omit: tuple[str, ...] = Field(default=(), strict=False)


@dataclass(frozen=True, slots=True)
class _Origin:
    """The file that a placement was read from, for errors that are found later. Two placements that say the same are
    equal wherever they come from."""

    source: str = field(default="placement", compare=False)
    tree: Any = field(default=None, compare=False, repr=False)

    def at(self, key: str) -> str:
        """The place of a key, such as `groups[0].worker`: `file:line`, or `placement` for one that was not read."""
        if self.tree is None:
            return self.source
        location = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", key)]
        return f"{self.source}:{_line(self.tree, location)}"


class Placement(_Strict):
    """The whole file. `run_ahead` lets a worker start a loop's next round before it has seen the present one's end.

    `transports` are those of plugins that move tensors between processes, asked in this order before the core's own.
    `address` is where workers on other hosts reach the server (`tcp://10.0.0.1:7700`; port 0 takes a free one).
    """

    workers: dict[str, WorkerPlace] = Field(default_factory=lambda: {"main": WorkerPlace()}, min_length=1)
    models: dict[str, ModelPlace] = Field(default_factory=dict)
    groups: tuple[NodeGroup, ...] = Field(default=(), strict=False)
    run_ahead: bool = True
    transports: tuple[str, ...] = Field(default=(), strict=False)
    address: str | None = None
    hosts: dict[str, HostPlace] = Field(default_factory=dict)

    _origin: _Origin = PrivateAttr(default_factory=_Origin)

    def model(self, name: str) -> ModelPlace:
        """A model's place, or the defaults."""
        return self.models.get(name, ModelPlace())

    @field_validator("address")
    @classmethod
    def _known(cls, address: str | None) -> str | None:
        return None if address is None else _tcp(address)


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
        placement = Placement.model_validate({} if values is None else values)
    except ValidationError as error:
        lines = [_problem(source, tree, each) for each in error.errors()]
        raise PlacementError("\n".join(lines)) from error
    placement._origin = _Origin(source, tree)
    return placement


def check_placement(placement: Placement, specs: Sequence[ModelSpec]) -> None:
    """Check a placement's names against each other and against the models that will be served.

    Raises one `PlacementError` for all mistakes, with file and line where the placement was read from a file.
    """
    problems = [*_check_hosts(placement), *_check_models(placement, specs), *_check_groups(placement, specs)]
    if problems:
        origin = placement._origin
        raise PlacementError("\n".join(f"{origin.at(each.partition(':')[0])}: {each}" for each in problems))


def _check_hosts(placement: Placement) -> Iterator[str]:
    for name, worker in placement.workers.items():
        if worker.host is not None and worker.host not in placement.hosts:
            yield f"workers.{name}.host: no host {worker.host!r}{nearest(worker.host, placement.hosts)}"
    if placement.hosts and placement.address is None:
        yield "hosts: they need an 'address' beside them, where they reach this server: tcp://ADDRESS:PORT"


def _check_models(placement: Placement, specs: Sequence[ModelSpec]) -> Iterator[str]:
    names = [spec.card.name for spec in specs]
    for name, place in placement.models.items():
        if name not in names:
            yield f"models.{name}: no such model is served{nearest(name, names)}; served are {', '.join(names)}"
            continue
        yield from _check_omitted(placement, specs[names.index(name)], place.omit)


def _check_omitted(placement: Placement, spec: ModelSpec, omit: Sequence[str]) -> Iterator[str]:
    name, nodes = spec.card.name, [node.name for node in spec.nodes]
    placed = {node for group in placement.groups if _spec_of(group, [spec]) is spec for node in group.nodes}
    for node in omit:
        if node not in nodes:
            yield f"models.{name}.omit: model {name!r} has no node {node!r}{nearest(node, nodes)}"
        elif node in placed:
            yield f"models.{name}.omit: {node!r} is in a group, too"
    if omit and all(any(run.node in omit for run in runs(walk.body)) for walk in spec.walks):
        yield f"models.{name}.omit: no walk is left without {', '.join(omit)}"


def _check_groups(placement: Placement, specs: Sequence[ModelSpec]) -> Iterator[str]:
    claimed: dict[tuple[str, str], list[NodeGroup]] = {}
    for index, group in enumerate(placement.groups):
        place = f"groups[{index}]"
        spec = _spec_of(group, specs)
        if spec is None:
            served = ", ".join(spec.card.name for spec in specs)
            yield f"{place}.model: {group.model or 'missing'}; several models or others are served: {served}"
            continue
        for worker in group.workers:
            if worker not in placement.workers:
                yield f"{place}.worker: no worker {worker!r}{nearest(worker, placement.workers)}"
        if len(set(group.workers)) < len(group.workers):
            yield f"{place}.worker: a worker is named twice"
        if group.tp > 1:
            yield f"{place}.tp: tensor parallelism over {group.tp} ranks is not available yet"
        yield from _check_nodes(place, group, spec)
        for node in group.nodes:
            others = claimed.setdefault((spec.card.name, node), [])
            for other in others:
                yield from _check_pair(place, node, group, other)
            others.append(group)
    for spec in specs:
        for (model, node), groups in claimed.items():
            if model == spec.card.name and all(group.walks for group in groups):
                yield from _check_moves(placement, spec, node, groups)


def _check_moves(placement: Placement, spec: ModelSpec, node: str, groups: Sequence[NodeGroup]) -> Iterator[str]:
    """A node whose groups name walks: they name all that run it, and a request is in one of them at a time."""
    place = f"groups[{placement.groups.index(groups[0])}]"
    walks = [walk for walk in spec.walks if any(run.node == node for run in runs(walk.body))]
    missing = [walk.name for walk in walks if not any(walk.name in group.walks for group in groups)]
    if missing:
        yield f"{place}.walks: {node!r} also runs in {', '.join(missing)}, which no group of it names"
    if len(groups) > 1 and len({walk.partition for walk in walks}) > 1:
        yield f"{place}.nodes: {node!r} runs in several partitions at the same time, so its walks must stay together"


def _check_pair(place: str, node: str, group: NodeGroup, other: NodeGroup) -> Iterator[str]:
    """Two groups that place one node: in different walks, on different workers, and in a way that lets it move."""
    walks, others = set(group.walks), set(other.walks)
    if not walks or not others or walks & others:
        yield f"{place}.nodes: {node!r} is placed twice"
        return
    shared = set(group.workers) & set(other.workers)
    if shared:
        yield f"{place}.worker: {node!r} is in another group on {', '.join(sorted(shared))}; put the walks together"
    if group.kv.page != other.kv.page or group.dtype != other.dtype:
        yield f"{place}.kv.page, dtype: must be those of the other group with {node!r}: its pages move between them"


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


def _tcp(address: str) -> str:
    if not re.fullmatch(r"tcp://(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}", address):
        raise ValueError(f"{address!r} is no address; write tcp://HOST:PORT")
    return address


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
        "hosts": HostPlace,
        "kv": KVPlace,
        "batch": BatchPlace,
    }
    named = [part for part in location if isinstance(part, str) and part in kinds]
    return list((kinds[named[-1]] if named else Placement).model_fields)
