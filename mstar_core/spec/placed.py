"""A model as a placement has it: without what the placement leaves out. Torch-free.

Optional nodes that no group names do not run: their runs are left out of the walks. Nodes that the placement omits do
not run either, nor does any walk that needs one; the model then makes what its other walks make.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from mstar_core.spec.graph import DynamicLoop, Element, Emit, Loop, Parallel, Run, Sequential, Walk, runs
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.placement import Placement


def as_placed(spec: ModelSpec, placement: Placement) -> ModelSpec:
    """The specification of what the placement runs; for a placement that `check_placement` accepts."""
    named = {node for group in placement.groups if group.model in (None, spec.card.name) for node in group.nodes}
    omitted = set(placement.model(spec.card.name).omit)
    absent = omitted | {node.name for node in spec.nodes if node.optional and node.name not in named}
    if not absent & {node.name for node in spec.nodes}:
        return spec
    walks = tuple(walk for walk in spec.walks if not any(run.node in omitted for run in runs(walk.body)))
    made = {emit.modality for walk in walks for emit in _emits(walk.body)}
    return replace(
        spec,
        card=replace(spec.card, outputs=tuple(modality for modality in spec.card.outputs if modality in made)),
        nodes=tuple(node for node in spec.nodes if node.name not in absent and _runs(node.name, walks)),
        walks=tuple(replace(walk, body=_without(walk.body, absent)) for walk in walks),
        edges=tuple(edge for edge in spec.edges if _runs(edge.source_node, walks) and _runs(edge.target_node, walks)),
    )


def _runs(node: str, walks: Iterable[Walk]) -> bool:
    return any(run.node == node for walk in walks for run in runs(walk.body))


def _emits(element: Element) -> Iterator[Emit]:
    match element:
        case Emit():
            yield element
        case Sequential(elements) | Parallel(elements):
            for each in elements:
                yield from _emits(each)
        case Loop() | DynamicLoop():
            yield from _emits(element.body)
        case Run():
            return


def _without(element: Element, absent: Collection[str]) -> Element:
    """The element without the runs of absent nodes; `Sequential()` where nothing is left."""
    match element:
        case Run():
            return Sequential() if element.node in absent else element
        case Sequential(steps):
            return Sequential(*_left(steps, absent))
        case Parallel(branches):
            left = _left(branches, absent)
            return left[0] if len(left) == 1 else Parallel(*left) if left else Sequential()
        case Loop() | DynamicLoop():
            return replace(element, body=_without(element.body, absent))
        case Emit():
            return element


def _left(elements: Iterable[Element], absent: Collection[str]) -> list[Element]:
    return [left for left in (_without(each, absent) for each in elements) if left != Sequential()]
