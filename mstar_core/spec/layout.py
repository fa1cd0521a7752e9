"""Layout: a placement applied to one model. Which group of workers runs each node in each walk, and who walks.

Conductor and workers compute the same layout from the same specification and placement, so that messages name groups by
number. For every request the Conductor chooses one worker for each group; that choice is the request's route.

Walks of one partition share signals, so one group, the partition's *home*, walks all of them: the one that runs the
partition's innermost loops, since a loop should not leave its worker. Its nodes are called directly, other nodes by
message. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mstar_core.spec.graph import DynamicLoop, Element, Emit, Loop, Parallel, Run, Sequential
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.placed import as_placed
from mstar_core.spec.placement import NodeGroup, Placement

_LOOP_WEIGHT = 100
"""How much more often a run is assumed to happen for every loop around it; only the order matters."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that run in the same way: the candidates among workers, and the placement's settings.

    `walks` is empty where the group runs its nodes in every walk.
    """

    nodes: tuple[str, ...]
    walks: tuple[str, ...]
    workers: tuple[str, ...]
    settings: NodeGroup


@dataclass(frozen=True, slots=True)
class Layout:
    """One model as it is placed: its specification without the optional nodes that have no place, its groups, the group
    of each (node, walk) that is run, and the home group of each partition."""

    spec: ModelSpec
    groups: tuple[Group, ...]
    group_of: Mapping[tuple[str, str], int]
    home_of: Mapping[str, int]

    def nodes_on(self, worker: str) -> dict[str, NodeGroup]:
        """The nodes that a worker may have to run, and how."""
        return {
            node: self.groups[group].settings
            for (node, _), group in self.group_of.items()
            if worker in self.groups[group].workers
        }

    def workers(self) -> tuple[str, ...]:
        """Every worker that the model needs or may use, in order."""
        used = {self.groups[group] for group in (*self.group_of.values(), *self.home_of.values())}
        return tuple(dict.fromkeys(worker for group in self.groups if group in used for worker in group.workers))


def layout_of(spec: ModelSpec, placement: Placement) -> Layout:
    """Apply a checked placement to a model."""
    spec = as_placed(spec, placement)
    first = next(iter(placement.workers))
    groups = [
        Group(group.nodes, group.walks, group.workers or (first,), group)
        for group in placement.groups
        if group.model in (None, spec.card.name)
    ]
    placed = {node for group in groups for node in group.nodes}
    groups += [
        Group((node.name,), (), (first,), NodeGroup(nodes=(node.name,)))
        for node in spec.nodes
        if node.name not in placed
    ]
    group_of = {
        (run.node, walk.name): _group_of(run.node, walk.name, groups)
        for walk in spec.walks
        for run, _ in _weighted(walk.body, 1)
    }
    homes = {partition: _home(spec, partition, group_of, groups) for partition in spec.partitions}
    return Layout(spec, tuple(groups), group_of, homes)


def _group_of(node: str, walk: str, groups: list[Group]) -> int:
    """The group that places a node in a walk."""
    return next(
        index for index, group in enumerate(groups) if node in group.nodes and (walk in group.walks or not group.walks)
    )


def _home(spec: ModelSpec, partition: str, group_of: Mapping[tuple[str, str], int], groups: list[Group]) -> int:
    """The group whose workers have most of the partition's runs, loops weighted; the earlier of equal ones."""
    weights: dict[int, int] = {}
    for walk in spec.walks:
        if walk.partition == partition:
            for run, weight in _weighted(walk.body, 1):
                group = group_of[run.node, walk.name]
                weights[group] = weights.get(group, 0) + weight
    by_workers = {
        group: sum(weight for other, weight in weights.items() if groups[other].workers == groups[group].workers)
        for group in weights
    }
    return max(sorted(by_workers), key=lambda group: by_workers[group])


def _weighted(element: Element, weight: int) -> Iterator[tuple[Run, int]]:
    match element:
        case Run():
            yield element, weight
        case Sequential(steps):
            for step in steps:
                yield from _weighted(step, weight)
        case Parallel(branches):
            for branch in branches:
                yield from _weighted(branch, weight)
        case Loop() | DynamicLoop():
            yield from _weighted(element.body, weight * _LOOP_WEIGHT)
        case Emit():
            return
