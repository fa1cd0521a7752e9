"""What every way of launching has in common: it starts parties, and tells when one has ended and why."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from mstar_core.launch.job import PartyJob
from mstar_core.wire.messages import Address
from mstar_core.wire.store import LocalStore


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told of a party, from any thread: `bound` once its mailbox is there, `ended` once, and then no more.

    `ended` gets a reason that completes "the worker has ...": "ended by SIGKILL", "failed: ...".
    """

    bound: Callable[[Address], None]
    ended: Callable[[str], None]


class Party(ABC):
    """A Conductor or worker that was started. Its methods return at once, and do nothing when it has ended."""

    @abstractmethod
    def stop(self) -> None:
        """Ask it to leave its loop."""

    @abstractmethod
    def kill(self) -> None:
        """End it, whatever it does."""


class Launcher(ABC):
    """Starts parties in one way, in one place. `patience_s` is how long one that was asked to leave may take before it
    is killed."""

    patience_s: float

    @abstractmethod
    def start(self, party: PartyJob, watch: Watch) -> Party:
        """Start a party, at a `near` endpoint of its own; the Conductor's is always the same."""

    @abstractmethod
    def close(self) -> None:
        """Free what the launcher holds, after every party has ended."""


class LocalLauncher(Launcher):
    """Starts parties on this host. `local` is the store by which they hand each other tensors, if they share this
    process."""

    local: LocalStore | None = None

    @abstractmethod
    def near(self, name: str) -> str:
        """The endpoint of the mailbox of that name, among the parties that are started here."""
