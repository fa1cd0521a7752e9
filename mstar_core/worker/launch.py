"""From specifications to a running worker: load the nodes that are placed here, build engines, report ready, serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from mstar_core.engines.base import BatchLimits, Engine, EngineSettings, NodeContext
from mstar_core.engines.build import build_engine
from mstar_core.engines.kernels import kernels_pay
from mstar_core.spec.graph import Node
from mstar_core.spec.layout import layout_of
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.placement import NodeGroup, Placement
from mstar_core.wire.exchange import Exchange
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Address, WorkerReady
from mstar_core.worker.memory import resident_bytes
from mstar_core.worker.models import LoadedModel
from mstar_core.worker.program import compile_model
from mstar_core.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model to load: its specification, its checkpoint's directory, and where its engines are, by name."""

    spec: ModelSpec
    checkpoint: Path
    engines: Mapping[str, str]


def run_worker(
    name: str,
    mailbox: Mailbox,
    conductor: Address,
    sources: Sequence[ModelSource],
    placement: Placement,
    exchange: Exchange,
    *,
    frontends: tuple[Address, ...] = (),
    trace: bool = False,
) -> None:
    """Load what is placed on this worker, tell the Conductor, and serve until told to stop.

    Runs on the worker's loop thread. Raises whatever keeps a node from being loaded.
    """
    place = placement.workers[name]
    if place.threads:
        torch.set_num_threads(place.threads)
    device = device_of(place.device)
    models = {source.spec.card.name: load_model(source, placement, name, device) for source in sources}
    models = {model: loaded for model, loaded in models.items() if loaded.engines}

    def describe() -> WorkerReady:
        return WorkerReady(
            worker=name,
            address=mailbox.address,
            nodes={model: list(loaded.engines) for model, loaded in models.items()},
            capacity={model: loaded.capacity() for model, loaded in models.items()},
            device=str(device),
            device_bytes=torch.cuda.memory_allocated(device) if device.type == "cuda" else 0,
            host_bytes=resident_bytes(),
        )

    Worker(
        name,
        mailbox,
        conductor,
        models,
        exchange,
        describe,
        run_ahead=placement.run_ahead,
        trace_to=frontends[0] if trace and frontends else None,
    ).run()


def device_of(name: str) -> torch.device:
    """The device behind a placement's `device`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load_model(source: ModelSource, placement: Placement, worker: str, device: torch.device) -> LoadedModel:
    """Resolve the factory of every node that is placed on this worker, load its weights, and put it on its engine."""
    layout = layout_of(source.spec, placement)
    groups = layout.nodes_on(worker)
    source = replace(source, spec=layout.spec)
    engines = {
        node.name: _load_node(node, source, placement, groups[node.name], device)
        for node in source.spec.nodes
        if node.name in groups
    }
    limits = {
        node: BatchLimits(requests=group.batch.requests, tokens=group.batch.tokens) for node, group in groups.items()
    }
    weight = placement.model(source.spec.card.name).weight
    return LoadedModel(compile_model(source.spec), layout, engines, limits, weight)


def _load_node(node: Node, source: ModelSource, placement: Placement, group: NodeGroup, device: torch.device) -> Engine:
    dtype = getattr(torch, source.spec.config.dtype if group.dtype == "auto" else group.dtype)
    context = NodeContext(
        node=node,
        config=source.spec.config.values,
        checkpoint=source.checkpoint,
        device=device,
        dtype=dtype,
        placed=frozenset(each.name for each in source.spec.nodes),
    )
    settings = EngineSettings(
        requests=placement.model(source.spec.card.name).running,
        kv_tokens=group.kv.tokens,
        page_tokens=group.kv.page,
        batch=BatchLimits(requests=group.batch.requests, tokens=group.batch.tokens),
        compile=_compiles(group, device, dtype),
    )
    return build_engine(source.engines[node.engine], context, settings)


def _compiles(group: NodeGroup, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a group's steps are compiled."""
    return device.type == "cpu" and kernels_pay(dtype) if group.compile == "auto" else group.compile
