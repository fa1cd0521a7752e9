"""The state machine: the model author's pure function from what has happened to the next walks, or the end.

A machine holds no torch and does no I/O; its state is a small frozen value, so that `mstar check` can explore it
and the Conductor can keep thousands. Walks started in one partition run one after another; partitions run
concurrently and meet only at streaming edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

DONE = "done"
UNTIL = "until"
AT_MOST = "at_most"


@dataclass(frozen=True, slots=True)
class InputShape:
    """dtype and shape of one tensor that a request brought."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """What a machine sees of a request: checked parameters, the shapes of its inputs, the modalities it wants back."""

    params: Mapping[str, Any]
    inputs: Mapping[str, tuple[InputShape, ...]]
    outputs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Start:
    """Start `walk`. A signal that bears the name of a request input holds that input's tensor number `take[name]`
    (0 where it is not mentioned)."""

    walk: str
    take: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkEnded:
    """A walk ended. `how` tells of the walk's last dynamic loop whether its stop signal (`until`) or its bound
    (`at_most`) ended it, else `done`; `flags` holds what the walk reports."""

    walk: str
    how: str = DONE
    flags: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What follows: the new state, walks to start, partitions that start no more walks, or the request's end.

    `finish` closes the streams that those partitions feed. `end` is the finish reason (`stop`, `length`, ...); the
    request is complete, and every other partition must have ended.
    """

    state: Any
    start: tuple[Start, ...] = ()
    finish: tuple[str, ...] = ()
    end: str | None = None


class StateMachine(Protocol):
    """What `mstar_state_machine` returns. Both methods are pure: same arguments, same transition."""

    def start(self, request: RequestView) -> Transition:
        """The first walks of a request."""
        ...

    def advance(self, state: Any, event: WalkEnded) -> Transition:
        """What follows when a walk has ended."""
        ...

    def demand(self, request: RequestView) -> Mapping[str, int]:
        """The most KV tokens that the request can hold at one time, by node; admission counts on it."""
        ...
