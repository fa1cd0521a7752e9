"""Engines by name: those of the core, and those that plugins bring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_core._resolve import resolve
from mstar_core.engines.base import Engine, EngineSettings, NodeContext
from mstar_core.engines.kernels import compiled_kernels, use_kernels

CORE_ENGINES: Mapping[str, str] = {
    "stateless": "mstar_core.engines.stateless:StatelessEngine",
    "kv_cache": "mstar_core.engines.kv_cache:KVCacheEngine",
}


def build_engine(target: str, context: NodeContext, settings: EngineSettings) -> Engine:
    """Resolve the factory of `context.node`, load the node, and put it on the engine at `target`."""
    name, factory = context.node.name, context.node.factory
    make: Any = resolve(factory, purpose=f"factory of node {name!r}") if isinstance(factory, str) else factory
    compiled = settings.compile and context.device.type == "cpu"
    with use_kernels(compiled_kernels() if compiled else None):
        node = make(context)
    engine: Engine = resolve(target, purpose=f"engine of node {name!r}").build(node, context, settings)
    return engine
