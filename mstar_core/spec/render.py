"""A model's Walk Graph for the reader: as indented text, and as a Mermaid flowchart. Called by `mstar graph`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from mstar_core.spec.graph import (
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
    StreamingEdge,
    Walk,
)
from mstar_core.spec.model import ModelSpec

_INDENT = "  "


def to_text(spec: ModelSpec) -> str:
    """Nodes with their ports, walks by partition, and streaming edges, one line each."""
    card = spec.card
    lines = [f"{card.name}: {', '.join(card.inputs)} -> {', '.join(card.outputs)}", "", "nodes"]
    width = max((len(node.name) for node in spec.nodes), default=0)
    lines += [_INDENT + _node_line(node, width) for node in spec.nodes]
    for partition in spec.partitions:
        lines += ["", f"partition {partition}"]
        for walk in spec.walks:
            if walk.partition == partition:
                reports = f" (reports {', '.join(walk.reports)})" if walk.reports else ""
                lines += [f"{_INDENT}walk {walk.name}{reports}", *_element_lines(spec, walk.body, _INDENT * 2)]
    if spec.edges:
        lines += ["", "streams", *(_INDENT + _edge_line(edge) for edge in spec.edges)]
    return "\n".join(lines)


def to_mermaid(spec: ModelSpec) -> str:
    """A flowchart: partitions, walks and loops as boxes, runs in their order, streams as dotted arrows."""
    return "\n".join(_Flowchart(spec).lines)


class _Flowchart:
    """The chart's lines. `runs` maps a node's name to the chart's ids of its runs."""

    def __init__(self, spec: ModelSpec) -> None:
        self.lines = ["flowchart LR"]
        self.runs: dict[str, list[str]] = {node.name: [] for node in spec.nodes}
        self._numbers = count()
        for partition in spec.partitions:
            self._open(f"partition {partition}", 1)
            for walk in spec.walks:
                if walk.partition == partition:
                    self._draw_walk(walk)
            self._close(1)
        for edge in spec.edges:
            self._draw_edge(edge)

    def _draw_walk(self, walk: Walk) -> None:
        self._open(f"walk {walk.name}", 2)
        self._draw(walk.body, 3)
        self._close(2)

    def _draw(self, element: Element, depth: int) -> tuple[list[str], list[str]]:
        """Add an element; the ids at which it begins and ends. An `Emit` ends nowhere: nothing waits for it."""
        match element:
            case Run(node):
                box = self._box(f'["{node}"]', depth)
                self.runs.setdefault(node, []).append(box)
                return [box], [box]
            case Emit(_, modality):
                return [self._box(f'(["{modality}"])', depth)], []
            case Sequential(steps):
                return self._draw_steps(steps, depth)
            case Parallel(branches):
                drawn = [self._draw(branch, depth) for branch in branches]
                return [box for begins, _ in drawn for box in begins], [box for _, ends in drawn for box in ends]
            case Loop() | DynamicLoop():
                return self._draw_loop(element, depth)

    def _draw_steps(self, steps: tuple[Element, ...], depth: int) -> tuple[list[str], list[str]]:
        first: list[str] = []
        last: list[str] = []
        for step in steps:
            begins, ends = self._draw(step, depth)
            self._link(last, begins, "-->", depth)
            first = first or begins
            last = ends or last
        return first, last

    def _draw_loop(self, loop: Loop | DynamicLoop, depth: int) -> tuple[list[str], list[str]]:
        self._open(_repetition(loop), depth)
        begins, ends = self._draw(loop.body, depth + 1)
        self._link(ends, begins, "-- again -->", depth + 1)
        self._close(depth)
        return begins, ends

    def _draw_edge(self, edge: StreamingEdge) -> None:
        sources, targets = self.runs.get(edge.source_node, []), self.runs.get(edge.target_node, [])
        self._link(sources, targets, f'-. "{edge.source_port}: {edge.policy}" .->', 1)

    def _link(self, sources: list[str], targets: list[str], arrow: str, depth: int) -> None:
        self.lines += [f"{_INDENT * depth}{source} {arrow} {target}" for source in sources for target in targets]

    def _box(self, shape: str, depth: int) -> str:
        name = f"n{next(self._numbers)}"
        self.lines.append(f"{_INDENT * depth}{name}{shape}")
        return name

    def _open(self, title: str, depth: int) -> None:
        self.lines.append(f'{_INDENT * depth}subgraph g{next(self._numbers)}["{title}"]')

    def _close(self, depth: int) -> None:
        self.lines.append(f"{_INDENT * depth}end")


def _element_lines(spec: ModelSpec, element: Element, indent: str) -> Iterator[str]:
    match element:
        case Run():
            yield indent + _run_line(spec, element)
        case Emit(signal, modality):
            yield f"{indent}emit {signal} as {modality}"
        case Sequential(steps):
            for step in steps:
                yield from _element_lines(spec, step, indent)
        case Parallel(branches):
            yield f"{indent}at once"
            for branch in branches:
                yield from _branch_lines(spec, branch, indent + _INDENT)
        case Loop() | DynamicLoop():
            yield indent + _repetition(element)
            yield from _element_lines(spec, element.body, indent + _INDENT)


def _branch_lines(spec: ModelSpec, branch: Element, indent: str) -> Iterator[str]:
    """A branch's lines, marked where it begins."""
    for number, line in enumerate(_element_lines(spec, branch, "")):
        yield indent + ("- " if number == 0 else "  ") + line


def _run_line(spec: ModelSpec, run: Run) -> str:
    node = next((node for node in spec.nodes if node.name == run.node), None)
    streamed = {edge.target_port for edge in spec.edges if edge.target_node == run.node}
    inputs, outputs = dict(run.inputs), dict(run.outputs)
    consumed = [
        f"stream {port.name}" if port.name in streamed else inputs.get(port.name, port.name)
        for port in (node.inputs if node else ())
    ]
    produced = [outputs.get(port.name, port.name) for port in (node.outputs if node else ())]
    return f"{run.node}: {', '.join(consumed) or 'nothing'} -> {', '.join(produced) or 'nothing'}"


def _repetition(loop: Loop | DynamicLoop) -> str:
    gathered = f", gathering {', '.join(loop.gather)}" if loop.gather else ""
    if isinstance(loop, Loop):
        return f"{_amount(loop.times)} times{gathered}"
    bound = "" if loop.at_most is None else f", at most {_amount(loop.at_most)} times"
    return f"until {_stop(loop.until)}{bound}{gathered}"


def _stop(until: str | StreamEnd) -> str:
    return f"the stream into {until.node}.{until.port} ends" if isinstance(until, StreamEnd) else until


def _amount(number: Count) -> str:
    if isinstance(number, int):
        return str(number)
    return number.name + (f" {'+' if number.offset > 0 else '-'} {abs(number.offset)}" if number.offset else "")


def _node_line(node: Node, width: int) -> str:
    inputs = ", ".join(_port(port) for port in node.inputs)
    outputs = ", ".join(_port(port) for port in node.outputs)
    kind = f"{node.engine}, optional" if node.optional else node.engine
    return f"{node.name:<{width}}  {kind}  {inputs or 'nothing'} -> {outputs or 'nothing'}"


def _port(port: Port) -> str:
    shape = "" if port.shape is None else f"[{', '.join(map(str, port.shape))}]"
    return f"{port.name} {port.dtype}{shape}" + (" sparse" if port.sparse else "")


def _edge_line(edge: StreamingEdge) -> str:
    outlives = ", outlives its producer" if edge.outlives else ""
    return f"{edge.source} -> {edge.target}  {edge.policy}, buffer of {edge.buffer_items} items{outlives}"
