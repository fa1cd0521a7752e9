"""The benchmarks' language model as a plugin: what the whole system serves when its decode speed is measured.

Prefill and decode are walks as a real plugin has them; every id is emitted as it is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstar_core import hookimpl
from mstar_core.spec.content import Content, Prepared, Tensor
from mstar_core.spec.graph import (
    FLAG,
    DynamicLoop,
    Emit,
    Node,
    Param,
    Port,
    RequestInput,
    Run,
    Sequential,
    Walk,
    WalkSet,
)
from mstar_core.spec.machine import RequestView, Start, Transition, WalkEnded
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig
from mstar_core.spec.params import Parameter


class MidMachine:
    """prefill, decode, end."""

    def start(self, request: RequestView) -> Transition:
        """Read the prompt."""
        return Transition(state=None, start=(Start("prefill"),))

    def advance(self, state: None, event: WalkEnded) -> Transition:
        """Decode, then end."""
        if event.walk == "prefill":
            return Transition(state=None, start=(Start("decode"),))
        return Transition(state=None, end="length")

    def demand(self, request: RequestView) -> Mapping[str, int]:
        """The prompt and all that follows."""
        return {"lm": request.inputs["prompt"][0].shape[0] + request.params["new"]}


class MidProcessor:
    """Ids in, ids out."""

    def prepare(self, content: Sequence[Content], params: Mapping[str, Any]) -> Prepared:
        """One tensor of ids."""
        (prompt,) = content
        assert isinstance(prompt, Tensor)
        return Prepared(inputs={"prompt": [prompt.array]}, params=params)

    def render(self, prepared: Prepared) -> MidRenderer:
        """A renderer."""
        return MidRenderer()


class MidRenderer:
    """An id as it comes."""

    def output(self, modality: str, value: NDArray[Any]) -> Content:
        """One id."""
        return Tensor("id", np.asarray(value))

    def finish(self) -> Sequence[Content]:
        """Nothing is held back."""
        return ()

    def usage(self, tokens: Mapping[str, int]) -> Mapping[str, int]:
        """KV tokens by walk."""
        return tokens


class MidPlugin:
    """The hooks. `node` makes the node object inside the worker."""

    def __init__(self, node: Callable[..., Any]) -> None:
        self._node = node

    @hookimpl
    def mstar_models(self) -> list[ModelCard]:
        """The model `mid`; its checkpoint is given when it is served."""
        tiny = Checkpoint(name="tiny", source="mstar_core:testing")
        return [
            ModelCard(
                name="mid", family="mid", summary="", inputs=("tensor",), outputs=("tensor",), checkpoints=(tiny,)
            )
        ]

    @hookimpl
    def mstar_config(self, card: ModelCard, checkpoint: Path) -> ModelConfig:
        """How many ids follow, and how they are sampled."""
        new = Parameter(name="new", kind="int", default=64, minimum=2)
        temperature = Parameter(name="temperature", kind="float", default=0.0, minimum=0)
        return ModelConfig(values=None, parameters=(new, temperature), dtype="bfloat16")

    @hookimpl
    def mstar_nodes(self, card: ModelCard, config: ModelConfig) -> tuple[Node, ...]:
        """The language model."""
        return (
            Node(
                name="lm",
                engine="kv_cache",
                inputs=(Port("ids", "int64", tokens=0),),
                outputs=(Port("ids", "int64", ()), Port("stop", FLAG)),
                factory=self._node,
            ),
        )

    @hookimpl
    def mstar_walks(self, card: ModelCard, config: ModelConfig) -> WalkSet:
        """prefill and decode, each emitting what it samples."""
        loop = DynamicLoop(Sequential(Run("lm"), Emit("ids", "tensor")), at_most=Param("new", -1), until="stop")
        first = Sequential(Run("lm", inputs={"ids": "prompt"}), Emit("ids", "tensor"))
        return WalkSet(
            walks=(
                Walk(name="prefill", partition="main", body=first),
                Walk(name="decode", partition="main", body=loop),
            ),
            inputs=(RequestInput(name="prompt", dtype="int64", shape=("n",)),),
        )

    @hookimpl
    def mstar_state_machine(self, card: ModelCard, config: ModelConfig) -> MidMachine:
        """The machine."""
        return MidMachine()

    @hookimpl
    def mstar_processor(self, card: ModelCard, config: ModelConfig, checkpoint: Path) -> MidProcessor:
        """The processor."""
        return MidProcessor()
