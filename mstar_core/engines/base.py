"""What an engine is, and the few values that it and the worker exchange.

Threads: the worker's *device* thread calls `Engine.run` with one batch after another, in the order in which `collect`
and `leave` made them; its *loop* thread calls everything else. An engine's bookkeeping therefore belongs to the loop
thread and needs no locks; what `run` reads of a batch was written before the batch was handed over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch

from mstar_core.errors import NodeFailed
from mstar_core.spec.graph import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel:
    """This worker's place among the ranks that share a node."""

    rank: int = 0
    size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What a node's factory is called with, once, inside the worker that runs the node.

    `placed` are the model's nodes that run anywhere: all but the optional ones that have no place.
    """

    node: Node
    config: Any
    checkpoint: Path
    device: torch.device
    dtype: torch.dtype
    parallel: TensorParallel = field(default_factory=TensorParallel)
    placed: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class NodeRequest:
    """One request as one node sees it, from the request's first call until it is closed.

    `key` is unique among the worker's open requests. `runs` counts the calls made so far (the worker's). `state` is the
    node's own: what its `open` or `unpack` returned.
    """

    key: int
    params: Mapping[str, Any]
    seed: int
    runs: int = 0
    state: Any = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """The value of a streaming input: items `position` to `position + len(items)` of the stream.

    The first `context` items were new in an earlier chunk. Exactly one chunk of a stream is `final`.
    """

    items: tuple[Any, ...]
    context: int
    position: int
    final: bool


class BatchOutput:
    """What one batch produced on the device, by output port; `tensors` is empty until the batch has run.

    A port holds one tensor `[calls, ...]`, or one tensor per call where their lengths differ.
    """

    __slots__ = ("tensors",)

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor | Sequence[torch.Tensor]] = {}


@dataclass(frozen=True, slots=True)
class Row:
    """One call's share of a batch's output: row `index` of port `port`, maybe not computed yet.

    A row may be an input of the batch queued behind the one that makes it: that is how a decode loop runs ahead.
    """

    output: BatchOutput
    port: str
    index: int

    def tensor(self) -> torch.Tensor:
        """The row as a view; valid once the batch has run."""
        return self.output.tensors[self.port][self.index]


@dataclass(slots=True, eq=False)
class Call:
    """One ready run of a node for one request.

    `inputs` holds a value per input port (None where unconnected): a tensor, a `Row`, a `Chunk` or a host value.
    `step` counts this request's runs of this node, from 0, over all walks. `progress` and `tokens` are the engine's:
    tokens of a chunked prefill done, and KV tokens that the whole call appends.
    """

    request: NodeRequest
    walk: str
    inputs: Mapping[str, Any]
    step: int
    progress: int = 0
    tokens: int = 0


Outputs: TypeAlias = "Mapping[str, Any] | Exception | None"
"""What one call gave: values by output port, the exception that it raised, or None when it has to go on (or was
dropped)."""


class Batch:
    """Calls that run together. Engines subclass it with their plan.

    `partial` says that some call of it has to go on in a later batch (a chunked prefill): nothing may run ahead of it.
    """

    __slots__ = ("calls", "output", "partial", "walk")

    def __init__(self, walk: str, calls: Sequence[Call]) -> None:
        self.walk = walk
        self.calls = list(calls)
        self.output = BatchOutput()
        self.partial = False


@dataclass(slots=True)
class Handover:
    """What one node holds for one request, on the host, on its way to another worker.

    `state` is made of plain values (None, bool, int, float, str, bytes, lists, and dicts with string keys). The
    `tensors` are contiguous and on the CPU; they may travel in slices of their first dimension.
    """

    state: Any
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


class Leaving(Batch):
    """The batch without calls that `Engine.leave` makes; `handover` is complete when `work` has been done, in order."""

    __slots__ = ("handover", "work")

    def __init__(self, handover: Handover, work: Sequence[Callable[[], None]] = ()) -> None:
        super().__init__("", ())
        self.handover = handover
        self.work = work


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How much one batch may hold."""

    requests: int = 64
    tokens: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What a placement says of a node's engine: how many requests may be open at once, its KV pool, its largest batch,
    whether steps are compiled."""

    requests: int = 64
    kv_tokens: int = 65536
    page_tokens: int = 16
    batch: BatchLimits = field(default_factory=BatchLimits)
    compile: bool = False


class Engine(ABC):
    """Runs one node for many requests.

    `run_ahead` names the output ports whose values are always `Row`s of the batch's output: they may be inputs of the
    next batch before this one has run.
    """

    run_ahead: frozenset[str] = frozenset()

    @classmethod
    @abstractmethod
    def build(cls, node: Any, context: NodeContext, settings: EngineSettings) -> Engine:
        """The engine around a node object, with the memory that `settings` give it."""

    @abstractmethod
    def open(self, request: NodeRequest) -> None:
        """Make room for a request (once, before its first call)."""

    @abstractmethod
    def collect(self, walk: str, calls: Sequence[Call], limits: BatchLimits) -> Batch | None:
        """The next batch from the front of `calls`, resources reserved; None when none can run now.

        Calls left out stay ready. A call whose inputs are wrong gives its error in `finish`, never here.
        """

    @abstractmethod
    def run(self, batch: Batch) -> None:
        """Execute on the device thread and fill `batch.output`."""

    @abstractmethod
    def finish(self, batch: Batch) -> list[Outputs]:
        """Per call, its outputs by port (absent: sparse and not produced); an exception where the call failed; None
        for a prefill that has to go on and for a call that was dropped.

        Values are `Row`s, host tensors or host values. Called on the loop thread after `run`, in order.
        """

    @abstractmethod
    def drop(self, batch: Batch, call: Call) -> None:
        """Undo a call: its outputs do not exist, its KV is rolled back. Called after `run` and before `finish`.

        Calls are dropped whose loop turned out to have ended before them, or whose batch raised in `run` (all of them
        then, and `finish` is not called); later calls of a request before earlier ones. Those of an aborted request
        are finished like others, and nobody takes their outputs.
        """

    @abstractmethod
    def close(self, request: NodeRequest) -> None:
        """Free everything that a request holds. No batch in flight contains it."""

    def leave(self, request: NodeRequest) -> Batch:
        """Give up what an open request holds, so that another worker can take it over; between two walks, with no call
        of the request begun.

        The batch has no calls; `run` has to be called with it, in its turn, and then `left`. The request stays open,
        empty, and may come back by `enter`. Raises `NodeFailed` where the engine or the node cannot do this, and what
        else the node's `pack` raises; then nothing has changed.
        """
        raise NodeFailed(_cannot_hand_over(self))

    def left(self, batch: Batch) -> Handover:
        """What `leave` took, once its batch has run."""
        assert isinstance(batch, Leaving), "only a batch that `leave` made has something to hand over"
        return batch.handover

    def enter(self, request: NodeRequest, handover: Handover) -> None:
        """Let an open, empty request hold what another worker's engine held for it.

        It takes up no room in the cache yet: its next call is collected when there is enough. Raises `NodeFailed` when
        this engine cannot hold it, and what else the node's `unpack` raises; then nothing has changed.
        """
        raise NodeFailed(_cannot_hand_over(self))

    def capacity(self) -> int | None:
        """The KV tokens that all requests together may hold, or None where nothing is held."""
        return None

    def metrics(self) -> Mapping[str, float]:
        """Gauges by name, e.g. pages in use."""
        return {}


def _cannot_hand_over(engine: Engine) -> str:
    return (
        f"{type(engine).__name__} cannot hand a request over to another worker; place all walks of its nodes in one "
        "group, or let the engine implement leave and enter"
    )
