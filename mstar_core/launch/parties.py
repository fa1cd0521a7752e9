"""The bodies of Conductor and workers, whatever runs them: a thread, a process, or a process on another host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mstar_core._resolve import resolve
from mstar_core.conductor.conductor import Conductor
from mstar_core.conductor.models import served_models
from mstar_core.errors import MStarError
from mstar_core.launch.job import ConductorJob, WorkerJob
from mstar_core.plugins.registry import Registry
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.placement import Placement
from mstar_core.wire.exchange import Exchange
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Address
from mstar_core.wire.store import LocalStore
from mstar_core.wire.transport import Transport

if TYPE_CHECKING:
    from mstar_core.worker.launch import ModelSource

_log = logging.getLogger(__name__)

MakeTransport: TypeAlias = "Callable[[Address], Transport]"
"""What a plugin's `mstar_transports` names: called in every process with the address of its party."""

_INCARNATION_BITS = 40
"""Each Conductor numbers its requests from its incarnation shifted by so many bits: more than one will ever see."""


def run_conductor(job: ConductorJob, mailbox: Mailbox, specs: Sequence[ModelSpec], placement: Placement) -> None:
    """Be the Conductor until told to stop. Imports no torch."""
    with mailbox:
        Conductor(
            mailbox,
            served_models(specs, placement),
            job.frontends,
            workers=job.workers,
            lost=job.lost,
            first_key=job.incarnation << _INCARNATION_BITS | 1,
        ).run()


def run_worker(
    job: WorkerJob,
    mailbox: Mailbox,
    sources: Sequence[ModelSource],
    placement: Placement,
    local: LocalStore | None = None,
    transports: Sequence[MakeTransport] = (),
) -> None:
    """Be a worker until told to stop; raises when it cannot load, or cannot go on.

    `local` is the store of the process's other parties, if there are any; `transports` are those of plugins.
    """
    from mstar_core.worker import launch

    shared = placement.workers[job.name].shared * 2**20
    own = [make(mailbox.address) for make in transports]
    exchange = Exchange(mailbox.address, local=local, shared_bytes=shared, transports=own)
    try:
        with mailbox:
            launch.run_worker(
                job.name,
                mailbox,
                job.conductor,
                sources,
                placement,
                exchange,
                frontends=job.frontends,
                trace=job.trace,
            )
    finally:
        exchange.close()


def transports_of(registry: Registry, placement: Placement) -> list[MakeTransport]:
    """What makes a party's transports, of those that plugins bring and the placement names. Raises `PluginError`."""
    targets = {name: registry.extension("mstar_transports", name, {}) for name in placement.transports}
    return [resolve(target, purpose=f"transport {name!r}") for name, target in targets.items()]


def worker_sources(registry: Registry, models: Sequence[tuple[ModelSpec, Path]]) -> list[ModelSource]:
    """What a worker loads, from each model's specification and its checkpoint's directory. Imports torch."""
    from mstar_core.engines.build import CORE_ENGINES
    from mstar_core.worker.launch import ModelSource

    sources = []
    for spec, directory in models:
        names = dict.fromkeys(node.engine for node in spec.nodes)
        engines = {name: registry.extension("mstar_engines", name, CORE_ENGINES) for name in names}
        sources.append(ModelSource(spec, directory, engines))
    return sources


def failure(title: str, error: Exception) -> str:
    """Why a party failed, for its watcher; what is no deliberate error is logged with its traceback."""
    if isinstance(error, MStarError):
        return f"failed: {error}"
    _log.critical("the %s failed", title, exc_info=error)
    return f"failed: {type(error).__name__}: {error}"
