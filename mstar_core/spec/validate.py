"""Checks a whole model specification and reports every problem at once.

Each problem is one line: where it was written, which walk, node and port, what was expected, and the nearest right
name. Called by whoever assembles a model (the Conductor's process, `mstar check`), before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mstar_core.errors import SpecError, nearest
from mstar_core.spec.content import MODALITY_NAMES
from mstar_core.spec.flow import check_walk
from mstar_core.spec.graph import FLAG, Node, Run, StreamingEdge, runs
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.types import clash

BUILT_IN_ENGINES = frozenset({"kv_cache", "stateless"})


def validate(spec: ModelSpec, *, source: str = "", engines: frozenset[str] = BUILT_IN_ENGINES) -> None:
    """Raise one `SpecError` that lists all that is wrong with `spec`.

    `source` names the plugin and its version in the error; `engines` are the engine names that exist.
    """
    problems = [
        *_check_card(spec),
        *_check_names(spec),
        *_check_nodes(spec, engines),
        *_check_edges(spec),
        *(problem for walk in spec.walks for problem in check_walk(spec, walk)),
        *_check_use(spec),
    ]
    if problems:
        subject = f"model {spec.card.name!r}" + (f" of {source}" if source else "")
        raise SpecError(subject, list(dict.fromkeys(problems)))


def _check_card(spec: ModelSpec) -> Iterator[str]:
    card = spec.card
    if card.checkpoint("tiny") is None:
        yield "the card offers no checkpoint named 'tiny'; every model ships one that runs on any CPU"
    for modality in (*card.inputs, *card.outputs):
        if modality not in MODALITY_NAMES:
            known = ", ".join(MODALITY_NAMES)
            yield f"the card names a modality {modality!r}{nearest(modality, MODALITY_NAMES)}; known are {known}"
    for route in card.routes:
        if not route.startswith("/"):
            yield f"the card's route {route!r} does not begin with '/'"


def _check_names(spec: ModelSpec) -> Iterator[str]:
    yield from _repeated("node", (node.name for node in spec.nodes))
    yield from _repeated("walk", (walk.name for walk in spec.walks))
    yield from _repeated("parameter", (parameter.name for parameter in spec.config.parameters))
    yield from _repeated("request input", (each.name for each in spec.inputs))
    yield from _repeated("streaming edge into", (edge.target for edge in spec.edges))
    for kind, name, where in _declared(spec):
        if not name.isidentifier():
            yield f"{where}{kind} {name!r}: a name is letters, digits and underscores"


def _declared(spec: ModelSpec) -> Iterator[tuple[str, str, str]]:
    for node in spec.nodes:
        yield "node", node.name, f"{node.where}: "
        for port in (*node.inputs, *node.outputs):
            yield f"node {node.name!r}, port", port.name, f"{node.where}: "
    for walk in spec.walks:
        yield "walk", walk.name, f"{walk.where}: "
        yield f"walk {walk.name!r}, partition", walk.partition, f"{walk.where}: "
    for parameter in spec.config.parameters:
        yield "parameter", parameter.name, ""


def _check_nodes(spec: ModelSpec, engines: frozenset[str]) -> Iterator[str]:
    for node in spec.nodes:
        place = f"{node.where}: node {node.name!r}"
        if node.engine not in engines:
            known = ", ".join(sorted(engines))
            yield f"{place}: no engine {node.engine!r}{nearest(node.engine, engines)}; there are {known}"
        if isinstance(node.factory, str) and node.factory.count(":") != 1:
            yield f"{place}: factory {node.factory!r} is not of the form 'package.module:attribute'"
        if node.optional:
            yield from _check_optional(place, node, spec)
        for side, ports in (("input", node.inputs), ("output", node.outputs)):
            for problem in _repeated(f"{side} port", (port.name for port in ports)):
                yield f"{place}: {problem}"


def _check_optional(place: str, node: Node, spec: ModelSpec) -> Iterator[str]:
    """Every walk has to work without the node."""
    for port in node.outputs:
        if not port.sparse:
            yield f"{place}: output {port.name!r} must be sparse, since the node is optional"
    if any(node.name in (edge.source_node, edge.target_node) for edge in spec.edges):
        yield f"{place}: the end of a stream cannot be optional"


def _check_edges(spec: ModelSpec) -> Iterator[str]:
    nodes = {node.name: node for node in spec.nodes}
    for edge in spec.edges:
        place = f"{edge.where}: streaming edge {edge.source} -> {edge.target}"
        ends = list(_check_ends(place, edge, nodes))
        yield from ends
        if not ends:
            yield from _check_join(place, edge, nodes, spec)
        if edge.buffer_items < edge.policy.longest:
            yield (
                f"{place}: capacity {edge.buffer_items} cannot hold the policy's longest chunk of "
                f"{edge.policy.longest} items"
            )


def _check_ends(place: str, edge: StreamingEdge, nodes: dict[str, Node]) -> Iterator[str]:
    ends = (("source", edge.source_node, edge.source_port), ("target", edge.target_node, edge.target_port))
    for side, node_name, port_name in ends:
        node = nodes.get(node_name)
        if node is None:
            yield f"{place}: {side} node {node_name!r} does not exist{nearest(node_name, nodes)}"
            continue
        ports = {port.name for port in (node.outputs if side == "source" else node.inputs)}
        if port_name not in ports:
            kind = "output" if side == "source" else "input"
            yield f"{place}: node {node_name!r} has no {kind} port {port_name!r}{nearest(port_name, ports)}"


def _check_join(place: str, edge: StreamingEdge, nodes: dict[str, Node], spec: ModelSpec) -> Iterator[str]:
    source = nodes[edge.source_node].output(edge.source_port)
    target = nodes[edge.target_node].input(edge.target_port)
    if source is None or target is None:
        return
    problem = clash(source, target)
    if problem:
        yield f"{place}: {problem}"
    if source.dtype == FLAG:
        yield f"{place}: a flag cannot be streamed"
    producing, consuming = _partitions(spec, edge.source_node), _partitions(spec, edge.target_node)
    shared = producing & consuming
    if shared:
        yield f"{place}: both ends run in partition {sorted(shared)[0]!r}; a stream joins two partitions"
    for node, verb, partitions in (
        (edge.source_node, "feeds", producing),
        (edge.target_node, "consumes", consuming),
    ):
        if len(partitions) > 1:
            several = ", ".join(sorted(partitions))
            yield f"{place}: node {node!r} {verb} the stream in several partitions: {several}"


def _partitions(spec: ModelSpec, node: str) -> set[str]:
    return {walk.partition for walk in spec.walks if any(run.node == node for run in runs(walk.body))}


def _check_use(spec: ModelSpec) -> Iterator[str]:
    used = {run.node for walk in spec.walks for run in runs(walk.body)}
    for node in spec.nodes:
        if node.name not in used:
            yield f"{node.where}: node {node.name!r} is in no walk"
    nodes = {node.name: node for node in spec.nodes}
    consumed = {name for walk in spec.walks for run in runs(walk.body) for name in _consumed(nodes.get(run.node), run)}
    for each in spec.inputs:
        if each.name not in consumed:
            yield f"request input {each.name!r} is consumed by no walk{nearest(each.name, consumed)}"


def _consumed(node: Node | None, run: Run) -> Iterator[str]:
    renamed = dict(run.inputs)
    for port in node.inputs if node else ():
        yield renamed.get(port.name, port.name)


def _repeated(kind: str, names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield f"{kind} {name!r} is declared twice"
        seen.add(name)
