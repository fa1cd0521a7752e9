"""What a server and a host that runs workers for it say to each other: msgspec structs in msgpack.

    server -> host   Attach, StartWorker, EndWorker, Alive, Detach
    host -> server   Attached, Refused, WorkerBound, WorkerEnded, Alive, Detach

A server attaches itself with a `session` that it makes up. Every message bears it, and what belongs to an earlier one
is skipped. Either side takes the other for gone when it has said nothing for `SILENCE_S`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from mstar_core.launch.job import Setup, WorkerJob
from mstar_core.wire.messages import Address

ALIVE_S = 1.0
"""How often each side says that it is there."""

SILENCE_S = 5.0
"""After how long without a word the other side counts as gone: several lost or late ones are nothing yet."""


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """Run workers for this server from now on, if no other does so. Its earlier sessions are over."""

    session: str
    server: str
    version: str
    setup: Setup


class Attached(msgspec.Struct, frozen=True, tag="attached"):
    """The host is the server's."""

    session: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The host is not; with `passing` it may be later."""

    session: str
    reason: str
    passing: bool


class StartWorker(msgspec.Struct, frozen=True, tag="start"):
    """Start a worker, which bears `number` from now on."""

    session: str
    number: int
    job: WorkerJob


class EndWorker(msgspec.Struct, frozen=True, tag="end"):
    """Ask a worker to leave, or end it now."""

    session: str
    number: int
    now: bool


class WorkerBound(msgspec.Struct, frozen=True, tag="bound"):
    """A worker's mailbox is there."""

    session: str
    number: int
    address: Address


class WorkerEnded(msgspec.Struct, frozen=True, tag="ended"):
    """A worker has ended."""

    session: str
    number: int
    reason: str


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """The sender is there."""

    session: str


class Detach(msgspec.Struct, frozen=True, tag="detach"):
    """The sender goes away, and the session is over."""

    session: str


ToHost: TypeAlias = Attach | StartWorker | EndWorker | Alive | Detach
ToServer: TypeAlias = Attached | Refused | WorkerBound | WorkerEnded | Alive | Detach
HostMessage: TypeAlias = ToHost | ToServer
