"""How signals flow through one walk: who produces what each run consumes, and whether the types fit.

The check is one pass over the walk's elements in order of execution, with the set of signals known so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mstar_core.errors import nearest
from mstar_core.spec.content import MODALITY_NAMES, PROGRESS
from mstar_core.spec.graph import (
    ANY,
    FLAG,
    Count,
    DynamicLoop,
    Element,
    Emit,
    Loop,
    Node,
    Parallel,
    Port,
    Run,
    Sequential,
    StreamEnd,
    Walk,
    runs,
)
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.types import clash


@dataclass(slots=True)
class _Scope:
    """What the pass knows: the model's parts by name, and the port behind each signal available so far."""

    spec: ModelSpec
    walk: Walk
    nodes: Mapping[str, Node]
    streamed: frozenset[tuple[str, str]]
    signals: dict[str, Port]
    problems: list[str] = field(default_factory=list)

    def report(self, problem: str) -> None:
        self.problems.append(f"{self.walk.where}: walk {self.walk.name!r}: {problem}")


def check_walk(spec: ModelSpec, walk: Walk) -> list[str]:
    """Every problem of one walk: unknown nodes, ports and signals, types that clash, loops that cannot end."""
    nodes = {node.name: node for node in spec.nodes}
    streamed = frozenset((edge.target_node, edge.target_port) for edge in spec.edges)
    scope = _Scope(spec, walk, nodes, streamed, _signals_at_entry(spec, walk, nodes))
    _check(scope, walk.body, in_loop=False)
    produced = _produced(nodes, walk.body)
    for name in walk.reports:
        if name not in produced:
            scope.report(f"reports {name!r}, which no run of it produces{nearest(name, produced)}")
        elif produced[name].dtype != FLAG:
            scope.report(f"reports {name!r}, which is no flag")
    return scope.problems


def produced_signals(spec: ModelSpec, walk: Walk) -> frozenset[str]:
    """The signals that the runs of a walk write."""
    return frozenset(_produced({node.name: node for node in spec.nodes}, walk.body))


def _signals_at_entry(spec: ModelSpec, walk: Walk, nodes: Mapping[str, Node]) -> dict[str, Port]:
    """Request inputs, and what any walk of the same partition may have left behind."""
    signals = {
        each.name: Port(each.name, each.dtype, None if each.alternatives else each.shape) for each in spec.inputs
    }
    for other in spec.walks:
        if other.partition == walk.partition:
            signals |= _produced(nodes, other.body) if other is not walk else {}
    return signals


def _produced(nodes: Mapping[str, Node], element: Element) -> dict[str, Port]:
    produced: dict[str, Port] = {}
    for run in runs(element):
        renamed = dict(run.outputs)
        for port in nodes[run.node].outputs if run.node in nodes else ():
            produced[renamed.get(port.name, port.name)] = port
    return produced


def _check(scope: _Scope, element: Element, *, in_loop: bool) -> None:
    match element:
        case Run():
            _check_run(scope, element, in_loop=in_loop)
        case Sequential(steps):
            for step in steps:
                _check(scope, step, in_loop=in_loop)
        case Parallel():
            _check_parallel(scope, element, in_loop=in_loop)
        case Loop() | DynamicLoop():
            _check_loop(scope, element)
        case Emit():
            _check_emit(scope, element)


def _check_run(scope: _Scope, run: Run, *, in_loop: bool) -> None:
    node = scope.nodes.get(run.node)
    if node is None:
        scope.report(f"runs node {run.node!r}, which does not exist{nearest(run.node, scope.nodes)}")
        return
    for side, renames, ports in (("input", run.inputs, node.inputs), ("output", run.outputs, node.outputs)):
        names = [port.name for port in ports]
        for port_name, _ in renames:
            if port_name not in names:
                scope.report(f"node {node.name!r} has no {side} port {port_name!r}{nearest(port_name, names)}")
    for port in node.inputs:
        _check_input(scope, run, node, port, in_loop=in_loop)
    renamed = dict(run.outputs)
    scope.signals |= {renamed.get(port.name, port.name): port for port in node.outputs}


def _check_input(scope: _Scope, run: Run, node: Node, port: Port, *, in_loop: bool) -> None:
    if (node.name, port.name) in scope.streamed:
        if not in_loop:
            scope.report(f"node {node.name!r} consumes a stream at port {port.name!r} outside a loop: one chunk only")
        return
    signal = dict(run.inputs).get(port.name, port.name)
    source = scope.signals.get(signal)
    if source is None:
        if not port.sparse:
            scope.report(
                f"node {node.name!r}, port {port.name!r}: signal {signal!r} comes from no earlier step, no walk of "
                f"partition {scope.walk.partition!r} and no request input{nearest(signal, scope.signals)}"
            )
        return
    problem = clash(source, port)
    if problem:
        scope.report(f"node {node.name!r}: {problem}")
    if source.sparse and not port.sparse:
        scope.report(f"node {node.name!r}, port {port.name!r}: signal {signal!r} is sparse, the port is not")


def _check_parallel(scope: _Scope, element: Parallel, *, in_loop: bool) -> None:
    _check_streams_of_branches(scope, element)
    before = dict(scope.signals)
    after = dict(before)
    owners: dict[str, int] = {}
    for index, branch in enumerate(element.branches):
        scope.signals = dict(before)
        _check(scope, branch, in_loop=in_loop)
        after |= scope.signals
        for name in _produced(scope.nodes, branch):
            if owners.setdefault(name, index) != index:
                scope.report(f"two branches of a Parallel produce signal {name!r}")
    scope.signals = after


def _check_streams_of_branches(scope: _Scope, element: Parallel) -> None:
    """A stream has one producer and one consumer at a time: its nodes may run in one branch only."""
    ends = {node for edge in scope.spec.edges for node in (edge.source_node, edge.target_node)}
    ran: set[str] = set()
    for branch in element.branches:
        nodes = {run.node for run in runs(branch)} & ends
        for name in sorted(nodes & ran):
            scope.report(f"two branches of a Parallel run node {name!r}, which is the end of a stream")
        ran |= nodes


def _check_loop(scope: _Scope, loop: Loop | DynamicLoop) -> None:
    produced = _produced(scope.nodes, loop.body)
    _check(scope, loop.body, in_loop=True)
    for name in loop.gather:
        if name not in produced:
            scope.report(f"a loop gathers {name!r}, which its body does not produce{nearest(name, produced)}")
    if isinstance(loop, Loop):
        _check_count(scope, loop.times)
        return
    _check_until(scope, loop, produced)
    if loop.at_most is not None:
        _check_count(scope, loop.at_most)
    elif not isinstance(loop.until, StreamEnd):
        scope.report("a DynamicLoop without at_most may run for ever; only a StreamEnd may leave it out")


def _check_count(scope: _Scope, count: Count) -> None:
    if isinstance(count, int):
        if count < 1:
            scope.report(f"a loop runs {count} times; at least 1 is needed")
        return
    parameters = {parameter.name: parameter for parameter in scope.spec.config.parameters}
    parameter = parameters.get(count.name)
    if parameter is None:
        hint = nearest(count.name, parameters)
        scope.report(f"a loop counts by parameter {count.name!r}, which is not declared{hint}")
    elif parameter.kind != "int":
        scope.report(f"a loop counts by parameter {count.name!r}, which is {parameter.kind}, not int")


def _check_until(scope: _Scope, loop: DynamicLoop, produced: Mapping[str, Port]) -> None:
    if isinstance(loop.until, StreamEnd):
        end = (loop.until.node, loop.until.port)
        if end not in scope.streamed or all(run.node != loop.until.node for run in runs(loop.body)):
            scope.report(f"a loop ends with the stream into {end[0]}.{end[1]}, which its body does not consume")
    elif loop.until not in produced:
        scope.report(f"a loop ends by {loop.until!r}, which its body does not produce{nearest(loop.until, produced)}")
    elif produced[loop.until].dtype != FLAG:
        scope.report(f"a loop ends by {loop.until!r}, which is {produced[loop.until].dtype}, not a flag")


def _check_emit(scope: _Scope, emit: Emit) -> None:
    source = scope.signals.get(emit.signal)
    if source is None:
        scope.report(f"emits {emit.signal!r}, which nothing produces{nearest(emit.signal, scope.signals)}")
    elif source.dtype == FLAG:
        scope.report(f"emits {emit.signal!r}, which is a flag")
    if emit.modality == PROGRESS:
        if source is not None and (source.dtype not in (ANY, "int64") or source.shape not in (None, (2,))):
            scope.report(f"emits {emit.signal!r} as progress, which is int64 [2]: steps done, and steps in all")
    elif emit.modality not in MODALITY_NAMES:
        scope.report(f"emits modality {emit.modality!r}{nearest(emit.modality, MODALITY_NAMES)}")
    elif emit.modality not in scope.spec.card.outputs:
        scope.report(f"emits modality {emit.modality!r}, which the card does not list among its outputs")
