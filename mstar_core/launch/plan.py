"""What a server consists of, and how each part of it is launched: by threads, or by processes here and elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import zmq

from mstar_core.errors import ConfigurationError, PlacementError
from mstar_core.launch.base import Launcher, LocalLauncher
from mstar_core.launch.job import Setup
from mstar_core.launch.parties import MakeTransport, transports_of, worker_sources
from mstar_core.launch.processes import ProcessLauncher
from mstar_core.launch.remote import HostLauncher
from mstar_core.launch.threads import ThreadLauncher
from mstar_core.plugins.registry import Registry
from mstar_core.spec.layout import layout_of
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.placement import Placement
from mstar_core.wire.address import Keys

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to run: the Conductor, and each worker by its launcher. The Conductor listens for other hosts at `far`
    (`tcp://ADDRESS:PORT`), if that is not "". The frontend has the workers' `transports`."""

    conductor: LocalLauncher
    workers: Mapping[str, Launcher]
    far: str = ""
    transports: Sequence[MakeTransport] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model to serve: its specification, its checkpoint's directory, and what was asked for to find that (None: the
    card's first)."""

    spec: ModelSpec
    directory: Path
    wanted: str | None

    @property
    def checkpoint_elsewhere(self) -> str:
        """The checkpoint for a process on another host: what is a name or a hub id here is one there."""
        names = [checkpoint.name for checkpoint in self.spec.card.checkpoints]
        wanted = self.wanted or names[0]
        return str(self.directory) if wanted not in names and Path(wanted).expanduser().is_dir() else wanted


def thread_plan(registry: Registry, models: Sequence[Chosen], placement: Placement, context: Context) -> Plan:
    """Conductor and workers as threads of this process. Imports torch."""
    if placement.hosts:
        raise PlacementError("placement: hosts: the workers of one process are on its own host; serve with processes")
    sources = worker_sources(registry, [(chosen.spec, chosen.directory) for chosen in models])
    launcher = ThreadLauncher(context, sources, placement)
    return Plan(conductor=launcher, workers=dict.fromkeys(used_workers(models, placement), launcher))


def process_plan(
    registry: Registry,
    models: Sequence[Chosen],
    placement: Placement,
    context: Context,
    *,
    keys: Path | None,
    logs: tuple[str, str],
) -> Plan:
    """Conductor and workers as processes, here and on other hosts; `logs` is the format and the level of their logs.

    Raises `ConfigurationError` where the system has no descriptors of processes, or keys are missing.
    """
    if not hasattr(os, "pidfd_open"):
        raise ConfigurationError("serving with processes needs Linux; elsewhere serve in one: --in-process")
    far = placement.address or ""
    if far and keys is None:
        raise ConfigurationError("workers on other hosts need keys: make a file with 'mstar keys FILE', copy it there")
    setup = Setup(
        placement=placement.model_dump_json(),
        checkpoints={each.spec.card.name: str(each.directory) for each in models},
        plugins=registry.plugin_set,
        keys=str(keys.resolve()) if keys else None,
        log_format=logs[0],
        log_level=logs[1],
    )
    places = {name: placement.workers[name].host for name in used_workers(models, placement)}
    launchers: dict[str | None, Launcher] = {}
    if keys is not None:
        elsewhere = {each.spec.card.name: each.checkpoint_elsewhere for each in models}
        foreign = msgspec.structs.replace(setup, checkpoints=elsewhere, keys=None)
        for host in dict.fromkeys(filter(None, places.values())):
            launchers[host] = HostLauncher(context, host, placement.hosts[host].address, Keys.load(keys), foreign)
    launchers[None] = here = ProcessLauncher(setup, any_port(far))
    workers = {name: launchers[host] for name, host in places.items()}
    return Plan(conductor=here, workers=workers, far=far, transports=transports_of(registry, placement))


def used_workers(models: Sequence[Chosen], placement: Placement) -> list[str]:
    """The workers that have something to run, in the placement's order."""
    used = {name for chosen in models for name in layout_of(chosen.spec, placement).workers()}
    return [name for name in placement.workers if name in used]


def any_port(endpoint: str) -> str:
    """A free port at the interface of a `tcp://ADDRESS:PORT` endpoint; "" for ""."""
    return f"{endpoint.rpartition(':')[0]}:0" if endpoint else ""
