"""Walks compiled into flat programs: integer operations over a request's slots and counters.

A model is compiled once per placement. A request then carries only a list of slot values per partition and a list of
counters per walk; nothing is copied or looked up by name while it runs. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from mstar_core.spec.graph import (
    Count,
    DynamicLoop,
    Element,
    Emit,
    Loop,
    Node,
    Parallel,
    Run,
    Sequential,
    StreamEnd,
    Walk,
    runs,
)
from mstar_core.spec.model import ModelSpec


@dataclass(slots=True, eq=False)
class RunOp:
    """Run a node, store its outputs, push its streams, go on at `next`.

    `inputs` and `outputs` pair ports with slots, `sparse` are the outputs that may be missing; `takes` and `pushes`
    pair ports with edges. `ahead` is the loop operation that directly follows and leads back here, if the run may be
    started ahead of its predecessor's end.
    """

    queue: int
    node: str
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]
    sparse: frozenset[str]
    takes: tuple[tuple[str, int], ...]
    pushes: tuple[tuple[str, int], ...]
    next: int = -1
    ahead: LoopEnd | None = None


@dataclass(slots=True, eq=False)
class EmitOp:
    """Send a slot's value to the client."""

    slot: int
    modality: str
    next: int = -1


@dataclass(slots=True, eq=False)
class ForkOp:
    """Go on at every branch at once; `counter` counts the branches that have not ended."""

    branches: tuple[int, ...]
    counter: int


@dataclass(slots=True, eq=False)
class JoinOp:
    """A branch has ended; the last one goes on."""

    counter: int
    next: int = -1


@dataclass(slots=True, eq=False)
class LoopStart:
    """Reset a loop's counter, resolve its bound, enter the body (or leave at once when the bound is 0)."""

    counter: int
    bound: int
    times: Count | None
    dynamic: bool
    gather: tuple[tuple[int, int], ...]
    body: int = -1
    exit: int = -1


@dataclass(slots=True, eq=False)
class LoopEnd:
    """One run of the body is over: stop by flag, by the stream's end or by the bound, or go round again."""

    counter: int
    bound: int
    dynamic: bool
    until: int
    until_edge: int
    gather: tuple[tuple[int, int], ...]
    body: int
    exit: int = -1


@dataclass(slots=True, eq=False)
class EndOp:
    """The walk has ended."""


Op: TypeAlias = "RunOp | EmitOp | ForkOp | JoinOp | LoopStart | LoopEnd | EndOp"


@dataclass(slots=True, eq=False)
class Program:
    """One walk: its operations (entry at 0), how many counters a request needs, what it reports, whether it emits."""

    walk: str
    partition: str
    ops: list[Op]
    counters: int
    reports: tuple[tuple[str, int], ...]
    emits: bool


@dataclass(frozen=True, slots=True)
class Queue:
    """Where ready runs of one node in one walk wait. `index` is its place in the model's list of queues."""

    index: int
    node: str
    walk: str


@dataclass(slots=True, eq=False)
class CompiledModel:
    """All programs of a model. `inputs` gives, per walk, which slots hold which request input at its start."""

    spec: ModelSpec
    programs: dict[str, Program] = field(default_factory=dict)
    queues: list[Queue] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    edges_from: dict[str, tuple[int, ...]] = field(default_factory=dict)


def compile_model(spec: ModelSpec) -> CompiledModel:
    """Compile every walk of a validated model."""
    model = CompiledModel(spec)
    tables: dict[str, dict[str, int]] = {partition: {} for partition in spec.partitions}
    for walk in spec.walks:
        model.programs[walk.name] = _Compiler(model, walk, tables[walk.partition]).program()
    provided = {each.name for each in spec.inputs}
    for walk in spec.walks:
        table = tables[walk.partition]
        consumed = _consumed(spec, walk)
        model.inputs[walk.name] = tuple((name, table[name]) for name in table if name in provided & consumed)
    model.slots = {partition: len(table) for partition, table in tables.items()}
    model.edges_from = {partition: _edges_from(spec, partition) for partition in spec.partitions}
    return model


def _consumed(spec: ModelSpec, walk: Walk) -> set[str]:
    nodes = {node.name: node for node in spec.nodes}
    return {dict(run.inputs).get(port.name, port.name) for run in runs(walk.body) for port in nodes[run.node].inputs}


def _edges_from(spec: ModelSpec, partition: str) -> tuple[int, ...]:
    nodes = {run.node for walk in spec.walks if walk.partition == partition for run in runs(walk.body)}
    return tuple(index for index, edge in enumerate(spec.edges) if edge.source_node in nodes)


class _Compiler:
    """Emits one walk's operations in order; forward targets are patched when their place is known."""

    def __init__(self, model: CompiledModel, walk: Walk, table: dict[str, int]) -> None:
        self._model = model
        self._walk = walk
        self._table = table
        self._nodes: Mapping[str, Node] = {node.name: node for node in model.spec.nodes}
        self._takes = {(edge.target_node, edge.target_port): index for index, edge in enumerate(model.spec.edges)}
        self._ops: list[Op] = []
        self._counters = 0

    def program(self) -> Program:
        self._element(self._walk.body)
        self._ops.append(EndOp())
        _mark_run_ahead(self._ops)
        reports = tuple((name, self._slot(name)) for name in self._walk.reports)
        emits = any(isinstance(op, EmitOp) for op in self._ops)
        return Program(self._walk.name, self._walk.partition, self._ops, self._counters, reports, emits)

    def _element(self, element: Element) -> None:
        """Append an element's operations; each ends by going on to the operation behind it."""
        match element:
            case Run():
                self._run(element)
            case Emit():
                self._ops.append(EmitOp(self._slot(element.signal), element.modality, len(self._ops) + 1))
            case Sequential(steps):
                for step in steps:
                    self._element(step)
            case Parallel():
                self._parallel(element)
            case Loop() | DynamicLoop():
                self._loop(element)

    def _run(self, run: Run) -> None:
        node = self._nodes[run.node]
        reads, writes = dict(run.inputs), dict(run.outputs)
        edges = self._model.spec.edges
        takes = {port: edge for (name, port), edge in self._takes.items() if name == node.name}
        plain = [port.name for port in node.inputs if port.name not in takes]
        self._ops.append(
            RunOp(
                queue=self._queue(node.name),
                node=node.name,
                inputs=tuple((port, self._slot(reads.get(port, port))) for port in plain),
                outputs=tuple((port.name, self._slot(writes.get(port.name, port.name))) for port in node.outputs),
                sparse=frozenset(port.name for port in node.outputs if port.sparse),
                takes=tuple(takes.items()),
                pushes=tuple((e.source_port, index) for index, e in enumerate(edges) if e.source_node == node.name),
                next=len(self._ops) + 1,
            )
        )

    def _parallel(self, element: Parallel) -> None:
        counter = self._counter()
        fork = ForkOp((), counter)
        self._ops.append(fork)
        joins, starts = [], []
        for branch in element.branches:
            starts.append(len(self._ops))
            self._element(branch)
            joins.append(JoinOp(counter))
            self._ops.append(joins[-1])
        fork.branches = tuple(starts)
        for join in joins:
            join.next = len(self._ops)

    def _loop(self, loop: Loop | DynamicLoop) -> None:
        counter, bound = self._counter(), self._counter()
        gather = tuple((self._slot(name), self._slot(f"{name}[]")) for name in loop.gather)
        dynamic = isinstance(loop, DynamicLoop)
        start = LoopStart(counter, bound, loop.times if isinstance(loop, Loop) else loop.at_most, dynamic, gather)
        self._ops.append(start)
        start.body = len(self._ops)
        self._element(loop.body)
        until, until_edge = -1, -1
        if isinstance(loop, DynamicLoop):
            if isinstance(loop.until, StreamEnd):
                until_edge = self._takes[loop.until.node, loop.until.port]
            else:
                until = self._slot(loop.until)
        end = LoopEnd(counter, bound, dynamic, until, until_edge, gather, start.body)
        self._ops.append(end)
        start.exit = end.exit = len(self._ops)

    def _slot(self, signal: str) -> int:
        return self._table.setdefault(signal, len(self._table))

    def _counter(self) -> int:
        self._counters += 1
        return self._counters - 1

    def _queue(self, node: str) -> int:
        for queue in self._model.queues:
            if queue.node == node and queue.walk == self._walk.name:
                return queue.index
        self._model.queues.append(Queue(len(self._model.queues), node, self._walk.name))
        return len(self._model.queues) - 1


def _mark_run_ahead(ops: list[Op]) -> None:
    """Find runs that are a loop's whole body but for emits: their next run needs nothing but their own outputs."""
    for place, op in enumerate(ops):
        if not isinstance(op, RunOp) or op.takes:
            continue
        after = ops[op.next]
        while isinstance(after, EmitOp):
            after = ops[after.next]
        if isinstance(after, LoopEnd) and after.body == place and not after.gather and after.until_edge < 0:
            op.ahead = after
