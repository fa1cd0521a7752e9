"""A model as a placement has it: without the optional nodes that the placement does not name. Torch-free."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from mstar_core.spec.graph import DynamicLoop, Element, Emit, Loop, Parallel, Run, Sequential
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.placement import Placement


def as_placed(spec: ModelSpec, placement: Placement) -> ModelSpec:
    """The specification with only those optional nodes that a group of the placement names."""
    named = {node for group in placement.groups if group.model in (None, spec.card.name) for node in group.nodes}
    absent = {node.name for node in spec.nodes if node.optional} - named
    if not absent:
        return spec
    return replace(
        spec,
        nodes=tuple(node for node in spec.nodes if node.name not in absent),
        walks=tuple(replace(walk, body=_without(walk.body, absent)) for walk in spec.walks),
    )


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
