"""The counting model: two loops on an engine of its own that lets them run ahead.

It shows what a plugin does to bring an engine, and it makes run-ahead visible without a transformer: the engine adds
1 to a value that stays in the batch's output, and keeps a record of the runs that had an effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar_core.plugins.hookspecs import hookimpl
from mstar_core.spec.content import Content, Prepared, Tensor
from mstar_core.spec.graph import (
    FLAG,
    DynamicLoop,
    Emit,
    Loop,
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

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True)
class Record:
    """Values that runs produced with effect, by request seed, and how many runs were dropped."""

    values: dict[int, list[int]] = field(default_factory=dict)
    dropped: int = 0


RECORD = Record()


class CountingMachine:
    """The walk that the request names, then the end."""

    def start(self, request: RequestView) -> Transition:
        """Start it."""
        return Transition(state=None, start=(Start(request.params["walk"]),))

    def advance(self, state: None, event: WalkEnded) -> Transition:
        """End with how the walk ended."""
        return Transition(state=None, end=event.how)

    def demand(self, request: RequestView) -> Mapping[str, int]:
        """No KV."""
        return {}


class CountingProcessor:
    """Any content; the count starts at 0."""

    def prepare(self, content: Sequence[Content], params: Mapping[str, Any]) -> Prepared:
        """One scalar."""
        import numpy as np

        return Prepared(inputs={"value": [np.zeros((), dtype=np.int64)]}, params=params)

    def render(self, prepared: Prepared) -> CountingRenderer:
        """A renderer for one request."""
        return CountingRenderer()


class CountingRenderer:
    """The count as a tensor."""

    def output(self, modality: str, value: NDArray[Any]) -> Content | None:
        """One tensor."""
        return Tensor("value", value)

    def finish(self) -> Sequence[Content]:
        """Nothing is held back."""
        return ()

    def usage(self, tokens: Mapping[str, int]) -> Mapping[str, int]:
        """Nothing is counted."""
        return {}


@hookimpl
def mstar_models() -> list[ModelCard]:
    """The one model, `counting`."""
    tiny = Checkpoint(name="tiny", source="mstar_core:testing")
    return [
        ModelCard(
            name="counting",
            family="counting",
            summary="counts; for tests",
            inputs=("text",),
            outputs=("tensor",),
            checkpoints=(tiny,),
        )
    ]


@hookimpl
def mstar_config(card: ModelCard, checkpoint: Path) -> ModelConfig:
    """How far to count, and by which walk."""
    return ModelConfig(
        values=None,
        parameters=(
            Parameter(name="walk", kind="str", default="fixed", choices=("fixed", "dynamic", "emitting")),
            Parameter(name="rounds", kind="int", default=10, minimum=1),
            Parameter(name="stop_at", kind="int", default=10**6, minimum=1),
            Parameter(name="fail_at", kind="int", default=10**6, minimum=0),
        ),
    )


@hookimpl
def mstar_nodes(card: ModelCard, config: ModelConfig) -> tuple[Node, ...]:
    """One node, on the engine below."""
    scalar = Port("value", "int64", ())
    return (
        Node(
            name="count",
            engine="counting",
            inputs=(scalar,),
            outputs=(scalar, Port("stop", FLAG)),
            factory="mstar_core.testing.counting_engine:make_node",
        ),
    )


@hookimpl
def mstar_walks(card: ModelCard, config: ModelConfig) -> WalkSet:
    """A fixed loop, a dynamic one, and one that emits every round."""
    rounds = Param("rounds")
    each = Sequential(Run("count"), Emit("value", "tensor"))
    last = Emit("value", "tensor")
    return WalkSet(
        walks=(
            Walk(name="fixed", partition="main", body=Sequential(Loop(Run("count"), times=rounds), last)),
            Walk(
                name="dynamic",
                partition="main",
                body=Sequential(DynamicLoop(Run("count"), at_most=rounds, until="stop"), last),
            ),
            Walk(name="emitting", partition="main", body=DynamicLoop(each, at_most=rounds, until="stop")),
        ),
        inputs=(RequestInput(name="value", dtype="int64", shape=()),),
    )


@hookimpl
def mstar_state_machine(card: ModelCard, config: ModelConfig) -> CountingMachine:
    """The machine."""
    return CountingMachine()


@hookimpl
def mstar_processor(card: ModelCard, config: ModelConfig, checkpoint: Path) -> CountingProcessor:
    """The processor."""
    return CountingProcessor()


@hookimpl
def mstar_engines() -> tuple[tuple[str, str], ...]:
    """The engine `counting`."""
    return (("counting", "mstar_core.testing.counting_engine:CountingEngine"),)
