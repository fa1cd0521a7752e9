"""The stateless engine: batch calls by shape, run them together, split.

Everything that is not a transformer with a KV cache runs here: encoders, codecs, diffusion heads, samplers of noise,
pre- and post-processing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.base import (
    Batch,
    BatchLimits,
    Call,
    Chunk,
    Engine,
    EngineSettings,
    Handover,
    Leaving,
    NodeContext,
    NodeRequest,
    Outputs,
    Row,
)
from mstar_core.engines.node_object import NodeObject


class StatelessNode(NodeObject, ABC):
    """What a plugin's node object implements to run on the `stateless` engine.

    `forward` runs on the device thread; everything else on the worker's loop thread. A node may keep state per
    request (a codec's history) in `NodeRequest.state`, as `NodeObject` says; calls of one request come one at a time,
    in order, unless branches of a `Parallel` run the node at the same time.
    """

    @abstractmethod
    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """Outputs by port for each call, in order. The calls share one `signature`.

        Inputs that were `Row`s are tensors here. When it raises for several calls, it is called again with each alone,
        so it must leave the requests' states as they were when it raises.
        """

    def signature(self, call: Call) -> Hashable:
        """Calls of equal signature run in one batch: by default the walk and every input's shape and dtype."""
        return call.walk, tuple((port, _shape_of(value)) for port, value in sorted(call.inputs.items()))


class TensorNode(StatelessNode):
    """A stateless node that is a function of tensors: inputs of equal shape are stacked, computed once and split."""

    @abstractmethod
    def compute(self, **inputs: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Outputs by port, each `[calls, ...]`, from the inputs by port, each `[calls, ...]`."""

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """Stack, compute, split. Ports without a value are left out."""
        ports = [port for port, value in calls[0].inputs.items() if value is not None]
        stacked = {port: torch.stack([torch.as_tensor(call.inputs[port]) for call in calls]) for port in ports}
        outputs = self.compute(**stacked)
        return [{port: values[index] for port, values in outputs.items()} for index in range(len(calls))]


class StatelessBatch(Batch):
    """Calls of one signature, and what each came to; `refused` is why a lone call cannot run at all."""

    __slots__ = ("dropped", "outcomes", "refused")

    def __init__(self, walk: str, calls: Sequence[Call]) -> None:
        super().__init__(walk, calls)
        self.outcomes: list[Outputs] = [None] * len(self.calls)
        self.dropped: set[int] = set()
        self.refused: Exception | None = None


class StatelessEngine(Engine):
    """Runs a `StatelessNode` for many requests."""

    def __init__(self, node: StatelessNode) -> None:
        self.node = node

    @classmethod
    def build(cls, node: StatelessNode, context: NodeContext, settings: EngineSettings) -> StatelessEngine:
        """The engine around a node object; nothing is allocated."""
        return cls(node)

    def open(self, request: NodeRequest) -> None:
        """Let the node make its state."""
        request.state = self.node.open(request)

    def collect(self, walk: str, calls: Sequence[Call], limits: BatchLimits) -> Batch | None:
        """The first call and every later one of the same signature, up to `limits.requests`."""
        if not calls:
            return None
        signature = self._signature(calls[0])
        alike = [calls[0], *(call for call in calls[1:] if self._signature(call) == signature)]
        batch = StatelessBatch(walk, alike[: limits.requests])
        batch.refused = signature if isinstance(signature, Exception) else None
        return batch

    def run(self, batch: Batch) -> None:
        """Run all calls together; if that raises, each alone, so that only the faulty one fails."""
        if isinstance(batch, Leaving):
            return
        assert isinstance(batch, StatelessBatch)
        if batch.refused is not None:
            batch.outcomes = [batch.refused]
            return
        resolved = [_resolved(call) for call in batch.calls]
        outcomes = self._attempt(resolved)
        if len(resolved) > 1 and isinstance(outcomes[0], Exception):
            outcomes = [self._attempt([call])[0] for call in resolved]
        batch.outcomes = outcomes

    def finish(self, batch: Batch) -> list[Outputs]:
        """What `run` found, None for dropped calls."""
        assert isinstance(batch, StatelessBatch)
        return [None if index in batch.dropped else outcome for index, outcome in enumerate(batch.outcomes)]

    def drop(self, batch: Batch, call: Call) -> None:
        """Forget the call's outputs."""
        assert isinstance(batch, StatelessBatch)
        batch.dropped.add(batch.calls.index(call))

    def close(self, request: NodeRequest) -> None:
        """Let the node free its state."""
        self.node.close(request)
        request.state = None

    def leave(self, request: NodeRequest) -> Leaving:
        """Take the node's state."""
        leaving = Leaving(Handover(self.node.pack(request)))
        request.state = None
        return leaving

    def enter(self, request: NodeRequest, handover: Handover) -> None:
        """Give the node its state."""
        request.state = self.node.unpack(request, handover.state)

    def _signature(self, call: Call) -> Hashable:
        """The call's signature, or what the node raised: an exception equals no other, so its call stands alone."""
        try:
            return self.node.signature(call)
        except Exception as error:  # isolation boundary: a node's code
            return error

    def _attempt(self, calls: Sequence[Call]) -> list[Outputs]:
        # An isolation boundary: whatever a node raises belongs to its requests, never to the worker.
        try:
            with torch.inference_mode():
                outputs = list(self.node.forward(calls))
        except Exception as error:
            return [error] * len(calls)
        if len(outputs) != len(calls):
            wrong = ValueError(f"{type(self.node).__name__}.forward gave {len(outputs)} outputs for {len(calls)} calls")
            return [wrong] * len(calls)
        return [each if isinstance(each, Mapping) else _no_outputs(each) for each in outputs]


def _no_outputs(given: object) -> TypeError:
    return TypeError(f"outputs must be a mapping of ports to values, got {type(given).__name__}")


def _resolved(call: Call) -> Call:
    """The call with every `Row`, also those inside chunks, replaced by its tensor."""
    inputs = {port: _value(value) for port, value in call.inputs.items()}
    return Call(call.request, call.walk, inputs, call.step, call.progress)


def _value(value: Any) -> Any:
    if isinstance(value, Row):
        return value.tensor()
    if isinstance(value, Chunk):
        return Chunk(tuple(_value(item) for item in value.items), value.context, value.position, value.final)
    if isinstance(value, list):
        return [_value(item) for item in value]
    return value


def _shape_of(value: Any) -> Hashable:
    """What must agree for two values to be stacked. A row's shape is not known before it was computed: it stands alone
    unless rows of one port of one batch meet."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, Row):
        computed = value.output.tensors.get(value.port)
        return _shape_of(computed[value.index]) if computed is not None else (id(value.output), value.port)
    if isinstance(value, Chunk):
        return tuple(_shape_of(item) for item in value.items), value.context
    if isinstance(value, list):
        return tuple(_shape_of(item) for item in value)
    return type(value).__qualname__
