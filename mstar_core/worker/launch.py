"""From specifications to a running worker: load nodes, build engines, report ready, serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mstar_core.engines.base import BatchLimits, Engine, EngineSettings, NodeContext
from mstar_core.engines.build import build_engine
from mstar_core.spec.graph import Node
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.placement import Placement
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import WorkerReady
from mstar_core.wire.store import LocalStore
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
    conductor: str,
    sources: Sequence[ModelSource],
    placement: Placement,
    tensors: LocalStore,
    on_worker: Callable[[Worker], None],
) -> None:
    """Load every model, tell the Conductor, and serve until told to stop. Runs on the worker's loop thread."""
    place = placement.workers[name]
    if place.threads:
        torch.set_num_threads(place.threads)
    device = device_of(place.device)
    models = {source.spec.card.name: load_model(source, placement, device) for source in sources}
    worker = Worker(name, mailbox, conductor, models, tensors, run_ahead=placement.run_ahead)
    on_worker(worker)
    nodes = {model: list(loaded.engines) for model, loaded in models.items()}
    capacity = {model: loaded.capacity() for model, loaded in models.items()}
    mailbox.send(conductor, WorkerReady(name, mailbox.endpoint, nodes, capacity))
    worker.run()


def device_of(name: str) -> torch.device:
    """The device behind a placement's `device`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load_model(source: ModelSource, placement: Placement, device: torch.device) -> LoadedModel:
    """Resolve every node's factory, load its weights, and put it on its engine."""
    spec = source.spec
    engines = {node.name: _load_node(node, source, placement, device) for node in spec.nodes}
    limits = {
        node.name: BatchLimits(
            requests=placement.group(spec.card.name, node.name).batch.requests,
            tokens=placement.group(spec.card.name, node.name).batch.tokens,
        )
        for node in spec.nodes
    }
    return LoadedModel(compile_model(spec), engines, limits, placement.model(spec.card.name).weight)


def _load_node(node: Node, source: ModelSource, placement: Placement, device: torch.device) -> Engine:
    group = placement.group(source.spec.card.name, node.name)
    dtype = getattr(torch, source.spec.config.dtype if group.dtype == "auto" else group.dtype)
    context = NodeContext(
        node=node, config=source.spec.config.values, checkpoint=source.checkpoint, device=device, dtype=dtype
    )
    settings = EngineSettings(
        requests=placement.model(source.spec.card.name).running,
        kv_tokens=group.kv.tokens,
        page_tokens=group.kv.page,
        batch=BatchLimits(requests=group.batch.requests, tokens=group.batch.tokens),
        compile=group.compile,
    )
    return build_engine(source.engines[node.engine], context, settings)
