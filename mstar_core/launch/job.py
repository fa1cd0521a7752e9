"""What a child process is told when it starts, and what it tells its parent: msgspec structs in JSON, a line each.

A child reads one `Job` from its standard input, which stays open: its end means that the parent is gone. It writes
`Bound` and, when it cannot go on, `Failed` to what was its standard output.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from mstar_core.plugins.plugin_set import PluginSet
from mstar_core.wire.messages import Address


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all children of a server on one host.

    `placement` is the placement in JSON. `checkpoints` gives each model's: a name on its card, a directory, or a hub
    id. A child whose plugins are not `plugins` refuses to start. `keys` is the path of the key file, when other hosts
    take part.
    """

    placement: str
    checkpoints: dict[str, str]
    plugins: PluginSet
    keys: str | None = None
    log_format: str = "text"
    log_level: str = "info"


class ConductorJob(msgspec.Struct, frozen=True, kw_only=True, tag="conductor"):
    """Be the Conductor, for workers of other hosts at `far` (if not ""). `workers` served the one before; those that
    were at `lost` have ended, and the one before may not have told the others."""

    frontends: tuple[Address, ...]
    workers: dict[str, Address] = {}
    lost: tuple[Address, ...] = ()
    far: str = ""
    incarnation: int = 0

    @property
    def title(self) -> str:
        """What the process is called where processes are listed."""
        return "conductor"


class WorkerJob(msgspec.Struct, frozen=True, kw_only=True, tag="worker"):
    """Be the worker of that name. With `trace` tell the frontends of every batch."""

    name: str
    conductor: Address
    frontends: tuple[Address, ...]
    trace: bool = False

    @property
    def title(self) -> str:
        """What the process is called where processes are listed."""
        return f"worker {self.name}"


PartyJob: TypeAlias = ConductorJob | WorkerJob


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One child's task: which party to be, with the mailbox at `near` and (unless "") at `far`.

    `directory` holds the sockets of all parties of this host; whoever finds the parent dead removes it.
    """

    setup: Setup
    party: PartyJob
    near: str
    far: str
    directory: str


class Bound(msgspec.Struct, frozen=True, tag="bound"):
    """The child's mailbox is there."""

    address: Address


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The child cannot go on, and ends."""

    reason: str


Report: TypeAlias = Bound | Failed
