"""The toy world: a plugin through the public API that tells what reached it and imagines by adding up.

    observer [encode]    one tensor: size and sum of each piece of content, then the masked places
    dreamer  [rollout]   a Loop of `horizon` rounds, a tensor each: the step, and the sum of all pieces
    planner  [plan]      a Loop of `refinements` rounds, a tensor each; then the plan, [horizon, 7]

So a test knows which of its bytes came through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar_core.errors import InvalidRequest, nearest
from mstar_core.plugins.hookspecs import hookimpl
from mstar_core.spec.content import Content, Image, Prepared, Tensor, Text, Video
from mstar_core.spec.graph import Emit, Loop, Node, Param, Port, RequestInput, Run, Sequential, Walk, WalkSet
from mstar_core.spec.machine import RequestView, Start, Transition, WalkEnded
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig
from mstar_core.spec.params import Parameter

if TYPE_CHECKING:
    from numpy.typing import NDArray

TASKS = ("encode", "rollout", "plan")
ROUTES = ("/v1/video/embeddings", "/v1/world/rollouts", "/v1/world/plans")
COMPONENTS = 7

PARAMETERS = (
    Parameter(name="task", kind="str", default="rollout", choices=TASKS, doc="What to do."),
    Parameter(name="frames", kind="int", default=0, minimum=0, doc="How many frames to look at; 0 for all."),
    Parameter(name="horizon", kind="int", default=3, minimum=1, maximum=100_000, doc="Steps to imagine."),
    Parameter(name="refinements", kind="int", default=2, minimum=1, maximum=100, doc="Rounds of planning."),
    Parameter(name="delay_ms", kind="float", default=0.0, minimum=0.0, maximum=10_000.0, doc="Time of a step."),
    Parameter(name="fail_at", kind="int", default=-1, minimum=-1, doc="The step in which the dreamer raises."),
)

_SEEN = Port("seen", "float32", ("numbers",))

NODES = (
    Node(
        name="observer",
        engine="stateless",
        inputs=(_SEEN, Port("mask", "int64", ("places",), sparse=True)),
        outputs=(Port("state", "float32", ("numbers",)),),
        factory="mstar_core.testing.toy_world_nodes:Observer",
    ),
    Node(
        name="dreamer",
        engine="stateless",
        inputs=(_SEEN, Port("state", "float32", (2,), sparse=True)),
        outputs=(Port("state", "float32", (2,)),),
        factory="mstar_core.testing.toy_world_nodes:Dreamer",
    ),
    Node(
        name="planner",
        engine="stateless",
        inputs=(_SEEN,),
        outputs=(Port("energies", "float32", (3,)), Port("plan", "float32", ("horizon", COMPONENTS))),
        factory="mstar_core.testing.toy_world_nodes:Planner",
    ),
)

WALKS = WalkSet(
    walks=(
        Walk(name="encode", partition="world", body=Sequential(Run("observer"), Emit("state", "tensor"))),
        Walk(
            name="rollout",
            partition="world",
            body=Loop(Sequential(Run("dreamer"), Emit("state", "tensor")), times=Param("horizon")),
        ),
        Walk(
            name="plan",
            partition="world",
            body=Sequential(
                Loop(Sequential(Run("planner"), Emit("energies", "tensor")), times=Param("refinements")),
                Emit("plan", "tensor"),
            ),
        ),
    ),
    inputs=(
        RequestInput(name="seen", dtype="float32", shape=("numbers",)),
        RequestInput(name="mask", dtype="int64", shape=("places",), optional=True),
    ),
)


class ToyWorldMachine:
    """One walk, that of the task."""

    def start(self, request: RequestView) -> Transition:
        """Start the task's walk."""
        return Transition(state=request.params["task"], start=(Start(request.params["task"]),))

    def advance(self, state: str, event: WalkEnded) -> Transition:
        """The end: a rollout is as long as it was asked for."""
        return Transition(state=state, end="length" if state == "rollout" else "stop")

    def demand(self, request: RequestView) -> Mapping[str, int]:
        """No KV."""
        return {}


@dataclass(slots=True)
class ToyWorldRenderer:
    """Names what comes: an encoding once, moments and energies with their steps, a plan once; a summary as text."""

    task: str
    seen: int
    steps: int = field(default=0)

    def output(self, modality: str, value: NDArray[Any]) -> Content | None:
        """The content of one emitted array."""
        if self.task == "encode" or value.ndim == 2:
            return Tensor("latents" if self.task == "encode" else "actions", value)
        self.steps += 1
        return Tensor("latents" if self.task == "rollout" else "energies", value, step=self.steps - 1)

    def finish(self) -> Sequence[Content]:
        """A word about an encoding."""
        return [Text(f"saw {self.seen} things")] if self.task == "encode" else []

    def usage(self, tokens: Mapping[str, int]) -> Mapping[str, int]:
        """No tokens are counted."""
        return {"input_tokens": 0, "output_tokens": 0}


class ToyWorldProcessor:
    """Any content but text and sound to numbers: of each piece its shape's product and its sum."""

    TENSORS = ("frames", "states", "actions", "goal", "mask")

    def prepare(self, content: Sequence[Content], params: Mapping[str, Any]) -> Prepared:
        """What was seen, float32 [2 x pieces], and the mask, int64 [places]; unknown tensors are refused."""
        import numpy as np

        numbers: list[float] = []
        masks = []
        for piece in content:
            array = self._array(piece, params)
            if isinstance(piece, Tensor) and piece.name == "mask":
                masks.append(array)
            else:
                numbers += [array.size, float(array.astype(np.float64).sum())]
        if not numbers:
            raise InvalidRequest("there is nothing to see", param="input")
        return Prepared(inputs={"seen": [np.array(numbers, np.float32)], "mask": masks}, params=params)

    def _array(self, piece: Content, params: Mapping[str, Any]) -> NDArray[Any]:
        match piece:
            case Video(frames):
                return frames[: params["frames"] or None]
            case Image(pixels):
                return pixels
            case Tensor(name, array):
                if name not in self.TENSORS:
                    hint = nearest(name, self.TENSORS)
                    raise InvalidRequest(f"unknown tensor {name!r}{hint}", param=f"tensors.{name}")
                return array
        raise InvalidRequest("'input' must be clips, pictures and tensors", param="input")

    def render(self, prepared: Prepared) -> ToyWorldRenderer:
        """A renderer for one request."""
        return ToyWorldRenderer(prepared.params["task"], len(prepared.inputs["seen"][0]) // 2)


@hookimpl
def mstar_models() -> list[ModelCard]:
    """The one model, `toy-world`."""
    return [
        ModelCard(
            name="toy-world",
            family="toy-world",
            summary="adds up what it sees; for tests",
            inputs=("video", "image", "tensor"),
            outputs=("tensor", "text"),
            checkpoints=(Checkpoint(name="tiny", source="mstar_core:testing"),),
            routes=ROUTES,
        )
    ]


@hookimpl
def mstar_config(card: ModelCard, checkpoint: Path) -> ModelConfig:
    """Nothing to configure."""
    return ModelConfig(values=None, parameters=PARAMETERS)


@hookimpl
def mstar_nodes(card: ModelCard, config: ModelConfig) -> tuple[Node, ...]:
    """The three nodes."""
    return NODES


@hookimpl
def mstar_walks(card: ModelCard, config: ModelConfig) -> WalkSet:
    """The three walks."""
    return WALKS


@hookimpl
def mstar_state_machine(card: ModelCard, config: ModelConfig) -> ToyWorldMachine:
    """The machine."""
    return ToyWorldMachine()


@hookimpl
def mstar_processor(card: ModelCard, config: ModelConfig, checkpoint: Path) -> ToyWorldProcessor:
    """The processor."""
    return ToyWorldProcessor()
