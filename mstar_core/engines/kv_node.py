"""What a plugin author writes for a transformer: a `KVNode`, run by the `kv_cache` engine.

class LanguageModel(KVNode):
    def __init__(self, context: NodeContext) -> None:
        self.model = load_llama(context)
        self.kv = self.model.kv
        self.samplers = {"main": SamplerSpec(vocab=self.model.config.vocab_size, temperature="temperature")}
        self.stop = context.config.stop_id

    def segments(self, call):
        return Segment(tokens=token_count(call.inputs["ids"]))

    def forward(self, step):
        hidden = self.model(step.tokens("ids"), step)
        ids = step.sample(self.model.logits(step.last(hidden)), "main")
        return {"ids": ids}

    def finish(self, call, row):
        return {"stop": row["ids"] == self.stop}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.attention.base import KVLayout
from mstar_core.engines.base import Call, Row
from mstar_core.engines.node_object import NodeObject
from mstar_core.engines.sampling import SamplerSpec
from mstar_core.engines.segments import Segment
from mstar_core.engines.step import Step


class KVNode(NodeObject, ABC):
    """A model component with a KV cache. Sequences are the engine's; for state beside them see `NodeObject`.

    `forward` runs on the device thread; everything else on the worker's loop thread, and does no device work.

    kv: what a token leaves in the cache on this rank.
    samplers: the node's samplers by name, and `masks` the allowed-token tables (bool `[phases, vocab]`) of those that
        have one.
    host_outputs: the outputs of `forward` that `finish` wants to see; they are copied to the host after the step.
    run_ahead: the output ports that `finish` leaves alone. A loop that carries only those can go on before `finish` has
        seen the step.
    position_axes: 0 for positions `[tokens]`, n for `[n, tokens]`. `position_dtype` is their type.
    """

    kv: KVLayout
    samplers: Mapping[str, SamplerSpec] = {}
    masks: Mapping[str, torch.Tensor] = {}
    host_outputs: tuple[str, ...] = ()
    run_ahead: tuple[str, ...] = ()
    position_axes: int = 0
    position_dtype: torch.dtype = torch.int64

    def inputs(self, call: Call) -> Mapping[str, Any]:
        """The values that `forward` sees: `call.inputs`, or what the node makes of them (the item of a chunk)."""
        return call.inputs

    @abstractmethod
    def segments(self, call: Call) -> Segment | Sequence[Segment]:
        """What the call does to its sequences. Called once per call, maybe before the previous step has run: it must
        not read a `Row`'s value or what `finish` has yet to learn.

        No segments: the call does nothing and has no outputs."""

    def phases(self, call: Call) -> Mapping[str, int]:
        """The row of the mask table that each sampler uses in this call; those left out allow every token."""
        return {}

    def forgets(self, call: Call) -> bool:
        """Whether the samplers' histories start anew with this call, as for a passage that stands by itself.

        By default they cover the whole request.
        """
        return False

    @abstractmethod
    def forward(self, step: Step) -> Mapping[str, torch.Tensor | list[torch.Tensor]]:
        """The step's outputs: each `[rows, ...]`, or from `step.split` where calls differ in length.

        A pure function of what `step` gives and the weights.
        """

    def finish(self, call: Call, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Outputs that the host decides: flags, and values of sparse ports, from the call's `host_outputs`.

        A one-dimensional output is a Python number here, others are tensors. Ports that are not returned become `Row`s
        of what `forward` gave; a port returned as None is not produced.
        """
        return {}

    def metrics(self) -> Mapping[str, float]:
        """Gauges of the node's own by name, beside the engine's; read from any thread."""
        return {}


def token_count(value: Any, axis: int = 0) -> int:
    """How many tokens an input brings: its length along the token axis; a `Row` or a number is one token."""
    if isinstance(value, torch.Tensor):
        return value.shape[axis] if value.dim() else 1
    return len(value) if isinstance(value, Sequence) and not isinstance(value, (str, Row)) else 1
