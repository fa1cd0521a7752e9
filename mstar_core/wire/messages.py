"""Every message between frontend, Conductor and workers: typed msgspec structs in msgpack. Torch-free.

    frontend   -> Conductor   Submit, Cancel
    frontend   -> worker      Read, Fetched
    Conductor  -> worker      Register, Open, StartWalk, FinishPartition, Close, PeerLost, Stop
    worker     -> Conductor   WorkerReady, WorkerFailed, Beat, WalkDone, WalkFailed, Closed
    worker     -> worker      RunNode, NodeDone, StreamItems, StreamCredit, HandOver, TakeOver, TakeSlice
    worker     -> frontend    Emitted, Fetch, Spans
    Conductor  -> frontend    ServerState, Ended, Released, PeerLost
    frontend   -> anyone      AskMetrics, answered by Metrics

Messages name tensors by `TensorRef`; what a reference points to moves by a transport, not in the message, unless it is
small or the receiver is on another host. A request has its public id (`request`, a string), which its client may use
again as soon as it has ended; the number of its `ticket`, which its frontend never uses again; and, between Conductor
and workers, an integer `key`, which grows from request to request.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from mstar_core.errors import RequestError, request_error

EMIT_WINDOW = 64
"""How many outputs of one request a worker may have emitted that the client has not read yet. A walk that emits starts
no further run beyond them, so that a slow reader costs bounded memory: some seconds of sound, a picture or two."""


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a party's mailbox is: `near` for parties of the same `host` (which can share memory), `far` for others.

    `near` is an `inproc://` or `ipc://` endpoint, `far` a `tcp://` one or "" where the party has none.
    """

    host: str
    near: str
    far: str = ""


class TensorRef(msgspec.Struct, frozen=True, array_like=True, tag="tensor"):
    """A tensor of another party: its bytes in C order are `data`, when they travel along, else `transport` finds them
    at `place` and `key`.

    One that is `held` may be taken by several receivers, and stays until its publisher drops it.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None = None
    transport: str = ""
    place: str = ""
    key: int = 0
    held: bool = False


class ChunkRef(msgspec.Struct, frozen=True, array_like=True, tag="chunk"):
    """A chunk of a stream: its items, how many of them are context, its place in the stream, whether it is the last."""

    items: list[TensorRef]
    context: int
    position: int
    final: bool


class ListRef(msgspec.Struct, frozen=True, array_like=True, tag="list"):
    """Several values, as a loop gathers them."""

    values: list[Value]


Value: TypeAlias = "bool | int | float | str | TensorRef | ChunkRef | ListRef | None"
"""What flows between nodes, in transit."""


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
    """A new request. Its outputs and its end go to `frontend`, for the ticket of that number; it fails when it has not
    ended within `timeout` seconds (None: the model's own deadline)."""

    request: str
    model: str
    params: dict[str, Any]
    seed: int
    inputs: dict[str, list[TensorRef]]
    outputs: list[str]
    frontend: Address
    ticket: int
    timeout: float | None = None


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Nobody waits for the request of this ticket any more."""

    request: str
    frontend: Address
    ticket: int


class Register(msgspec.Struct, frozen=True, tag="register"):
    """From a Conductor that knows nothing of this worker: free every request, and answer `WorkerReady` again.

    Its requests have keys from `first_key` on; what comes of others is a dead Conductor's.
    """

    conductor: Address
    first_key: int


class Open(msgspec.Struct, frozen=True, tag="open"):
    """A request is about to run walks; what it emits of other modalities than `outputs` is not sent.

    `route` says, for every group of the model's layout, which worker runs it for this request.
    """

    key: int
    request: str
    model: str
    params: dict[str, Any]
    seed: int
    inputs: dict[str, list[TensorRef]]
    outputs: list[str]
    frontend: Address
    ticket: int
    route: list[Address]


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


class PeerLost(msgspec.Struct, frozen=True, tag="peer_lost"):
    """A party is gone for good: drop what waits for it, free what it was sent."""

    address: Address


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Leave the loop."""


class WorkerReady(msgspec.Struct, frozen=True, tag="ready"):
    """A worker has loaded its nodes: `nodes` by model, `capacity` in KV tokens by model and node, and how many bytes
    of memory it has taken (on its device, and on the host)."""

    worker: str
    address: Address
    nodes: dict[str, list[str]]
    capacity: dict[str, dict[str, int]]
    device: str
    device_bytes: int
    host_bytes: int


class WorkerFailed(msgspec.Struct, frozen=True, tag="worker_failed"):
    """A worker cannot go on; `reason` says why. Sent by the worker itself or by whoever watches over it.

    With `restarting` it is expected back.
    """

    worker: str
    reason: str
    restarting: bool = False


BEAT_S = 1.0
"""How often a worker says that its loop turns, in seconds."""


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """A worker's loop turns."""

    worker: str


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


class RunNode(msgspec.Struct, frozen=True, tag="run_node"):
    """Run a node once, for a walk that another worker (`home`) walks; answered by `NodeDone` with the same `run`.

    `queue` is the number of the (node, walk) pair in the compiled model. With `awaits` what the node holds for the
    request is on its way from another worker: wait for it.
    """

    key: int
    run: int
    queue: int
    step: int
    inputs: dict[str, Value]
    home: Address
    awaits: bool = False


class NodeDone(msgspec.Struct, frozen=True, tag="node_done"):
    """What a run gave, by output port, and the KV tokens it appended."""

    key: int
    run: int
    outputs: dict[str, Value]
    tokens: int


class StreamItem(msgspec.Struct, frozen=True, array_like=True):
    """The next item of a stream of request `key`; None ends the stream."""

    key: int
    edge: int
    item: TensorRef | None


class StreamItems(msgspec.Struct, frozen=True, tag="items"):
    """Items of streams, in their producers' order."""

    items: list[StreamItem]


class StreamCredit(msgspec.Struct, frozen=True, tag="credit"):
    """The consumer of a stream has room for `places` more items."""

    key: int
    edge: int
    places: int


class HandOver(msgspec.Struct, frozen=True, tag="hand_over"):
    """Send what `node` holds for this request to the worker `to`, which runs it from now on."""

    key: int
    node: str
    to: Address


class TakeOver(msgspec.Struct, frozen=True, tag="take_over"):
    """The first part of what a node holds for a request: plain values in msgpack, and the dtypes and shapes of the
    tensors that follow in `TakeSlice`s, page by page."""

    key: int
    node: str
    state: bytes
    tensors: dict[str, tuple[str, tuple[int, ...]]]


class TakeSlice(msgspec.Struct, frozen=True, tag="take_slice"):
    """Rows `first` and following of one of the tensors that a `TakeOver` announced."""

    key: int
    node: str
    name: str
    first: int
    rows: TensorRef


class Output(msgspec.Struct, frozen=True, array_like=True):
    """One emitted tensor, for one ticket."""

    ticket: int
    modality: str
    tensor: TensorRef


class Emitted(msgspec.Struct, frozen=True, tag="emitted"):
    """All that a worker emitted to one frontend since its last message, in order."""

    worker: Address
    outputs: list[Output]


class Read(msgspec.Struct, frozen=True, tag="read"):
    """A client has read that many outputs of a ticket of `frontend`: as many more may be emitted."""

    frontend: Address
    ticket: int
    outputs: int


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """A worker on another host wants the tensors behind references that are held; answered by `Fetched`."""

    key: int
    inputs: dict[str, list[TensorRef]]
    receiver: Address


class Fetched(msgspec.Struct, frozen=True, tag="fetched"):
    """The tensors themselves, in the message."""

    key: int
    inputs: dict[str, list[TensorRef]]


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The one terminal event of a ticket. `emitted` outputs belong to it; some may still be on their way.

    `error` is None for a complete request, whose `reason` tells why it ended (`stop`, `length`, ...).
    """

    ticket: int
    reason: str
    emitted: int
    tokens: dict[str, int]
    error: ErrorInfo | None = None


class Released(msgspec.Struct, frozen=True, tag="released"):
    """No worker reads the inputs of this ticket any more."""

    ticket: int


class WorkerState(msgspec.Struct, frozen=True, array_like=True):
    """A worker as the Conductor knows it: `ready`, or why not; and, once it was ready, what it runs and takes."""

    state: str
    nodes: dict[str, list[str]] = {}
    device: str = ""
    device_bytes: int = 0
    host_bytes: int = 0


class ServerState(msgspec.Struct, frozen=True, tag="state"):
    """What the Conductor tells frontends when it changes: which models can be asked, or why one cannot."""

    ready: bool
    models: dict[str, str]
    workers: dict[str, WorkerState]


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One value of one metric. A histogram's `value` is its sum, and `buckets` are (upper border, cumulated count)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: dict[str, str]
    value: float
    buckets: list[tuple[float, int]] = []


class AskMetrics(msgspec.Struct, frozen=True, tag="ask_metrics"):
    """Tell `reply_to` what you count; answered by `Metrics` with the same number."""

    number: int
    reply_to: Address


class Metrics(msgspec.Struct, frozen=True, tag="metrics"):
    """What one party counts."""

    number: int
    party: str
    samples: list[Sample]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One batch of a node in one walk: when it began (seconds of the host's wall clock), how long it took, for which
    requests, and of how many rounds."""

    worker: str
    model: str
    node: str
    walk: str
    start: float
    seconds: float
    requests: list[str]
    failed: bool


class Spans(msgspec.Struct, frozen=True, tag="spans"):
    """What a worker ran since its last message, where the server writes a trace."""

    spans: list[Span]


Message: TypeAlias = (
    Submit
    | Cancel
    | Register
    | Open
    | StartWalk
    | FinishPartition
    | Close
    | PeerLost
    | Stop
    | WorkerReady
    | WorkerFailed
    | Beat
    | WalkDone
    | WalkFailed
    | Closed
    | RunNode
    | NodeDone
    | StreamItems
    | StreamCredit
    | HandOver
    | TakeOver
    | TakeSlice
    | Emitted
    | Read
    | Fetch
    | Fetched
    | Ended
    | Released
    | ServerState
    | AskMetrics
    | Metrics
    | Spans
)
