"""Every message between frontend, Conductor and workers: typed msgspec structs in msgpack. Torch-free.

    frontend  -> Conductor   Submit, Cancel
    Conductor -> worker      Open, StartWalk, FinishPartition, Close, Stop
    worker    -> Conductor   WorkerReady, WorkerFailed, WalkDone, WalkFailed, Closed
    worker    -> frontend    Emitted
    Conductor -> frontend    ServerState, Ended

Messages name tensors by `TensorRef`; what a reference points to moves by a transport, not in the message, unless it is
small. A request has its public id (`request`, a string), which its client may use again as soon as it has ended; the
number of its `ticket`, which its frontend never uses again; and, between Conductor and workers, an integer `key`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from mstar_core.errors import RequestError, request_error


class TensorRef(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of another party: `data` holds its bytes (C order) when they travel along, else `owner` keeps it
    under `key`."""

    dtype: str
    shape: tuple[int, ...]
    owner: str = ""
    key: int = 0
    data: bytes | None = None


class ErrorInfo(msgspec.Struct, frozen=True, array_like=True):
    """A `RequestError` in transit."""

    code: str
    message: str
    param: str | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, error: RequestError) -> ErrorInfo:
        """The transit form of an error."""
        return cls(error.code, error.message, error.param, error.retry_after)

    def rebuild(self) -> RequestError:
        """The error again."""
        return request_error(self.code, self.message, param=self.param, retry_after=self.retry_after)


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """A new request. Its outputs and its end go to `frontend`, for the ticket of that number."""

    request: str
    model: str
    params: dict[str, Any]
    seed: int
    inputs: dict[str, list[TensorRef]]
    outputs: list[str]
    frontend: str
    ticket: int


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Nobody waits for the request of this ticket any more."""

    request: str
    frontend: str
    ticket: int


class Open(msgspec.Struct, frozen=True, tag="open"):
    """A request is about to run walks on this worker; what it emits of other modalities than `outputs` is not sent."""

    key: int
    request: str
    model: str
    params: dict[str, Any]
    seed: int
    inputs: dict[str, list[TensorRef]]
    outputs: list[str]
    frontend: str
    ticket: int


class StartWalk(msgspec.Struct, frozen=True, tag="start"):
    """Run a walk; `take` says which of a request input's tensors the signal of that name holds (0 by default)."""

    key: int
    walk: str
    take: dict[str, int]


class FinishPartition(msgspec.Struct, frozen=True, tag="finish"):
    """A partition starts no more walks: the streams it feeds are complete."""

    key: int
    partition: str


class Close(msgspec.Struct, frozen=True, tag="close"):
    """The request has ended, however it did: free everything it holds, then answer `Closed`."""

    key: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Leave the loop."""


class WorkerReady(msgspec.Struct, frozen=True, tag="ready"):
    """A worker has loaded its nodes. `capacity` gives KV tokens by model and node; `nodes` what runs here."""

    worker: str
    endpoint: str
    nodes: dict[str, list[str]]
    capacity: dict[str, dict[str, int]]


class WorkerFailed(msgspec.Struct, frozen=True, tag="worker_failed"):
    """A worker cannot go on; `reason` says why."""

    worker: str
    reason: str


class WalkDone(msgspec.Struct, frozen=True, tag="done"):
    """A walk has ended: how, what it reports, what it emitted to the frontend, and the KV tokens it appended."""

    key: int
    walk: str
    how: str
    flags: dict[str, bool]
    emitted: int
    tokens: int


class WalkFailed(msgspec.Struct, frozen=True, tag="walk_failed"):
    """A walk cannot go on; the request has failed."""

    key: int
    walk: str
    node: str
    error: ErrorInfo


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """Everything of that request is free on this worker."""

    key: int
    worker: str


class Output(msgspec.Struct, frozen=True, array_like=True):
    """One emitted tensor, for one ticket."""

    ticket: int
    modality: str
    tensor: TensorRef


class Emitted(msgspec.Struct, frozen=True, tag="emitted"):
    """All that a worker emitted to one frontend since its last message, in order."""

    outputs: list[Output]


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The one terminal event of a ticket. `emitted` outputs belong to it; some may still be on their way.

    `error` is None for a complete request, whose `reason` tells why it ended (`stop`, `length`, ...).
    """

    ticket: int
    reason: str
    emitted: int
    tokens: dict[str, int]
    error: ErrorInfo | None = None


class ServerState(msgspec.Struct, frozen=True, tag="state"):
    """What the Conductor tells frontends when it changes: which models can be asked, or why one cannot."""

    ready: bool
    models: dict[str, str]


Message: TypeAlias = (
    Submit
    | Cancel
    | Open
    | StartWalk
    | FinishPartition
    | Close
    | Stop
    | WorkerReady
    | WorkerFailed
    | WalkDone
    | WalkFailed
    | Closed
    | Emitted
    | Ended
    | ServerState
)
