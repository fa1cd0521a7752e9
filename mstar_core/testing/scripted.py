"""The scripted model: a plugin through the public API whose nodes do what the request's parameters say.

It needs no weights and finishes in milliseconds, so the tests of the runtime and of the server stand on it. Its audio
tells who made it: every item of a request becomes `ITEM_SAMPLES` samples of the value `sample_of(code, seed, step)`.

    reader --item--> [prefill]         one run; may find that the answer is already at its end
    writer --item--> [write]           a DynamicLoop of `items` rounds, or until its stop signal
             |
             +--stream--> speaker      a chunk per run, emitted as audio
    counter          [count]           a Loop of exactly `rounds` rounds, gathered into one tensor
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar_core.errors import InvalidRequest
from mstar_core.plugins.hookspecs import hookimpl
from mstar_core.spec.chunks import FixedChunkPolicy
from mstar_core.spec.content import Audio, Content, Prepared, Tensor, Text
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
    StreamEnd,
    StreamingEdge,
    Walk,
    WalkSet,
)
from mstar_core.spec.machine import AT_MOST, RequestView, Start, Transition, WalkEnded
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig
from mstar_core.spec.params import Parameter

if TYPE_CHECKING:
    from numpy.typing import NDArray

RATE = 24_000
ITEM_SAMPLES = 240

PARAMETERS = (
    Parameter(name="voice", kind="str", default="low", choices=("low", "high"), doc="Sign of the samples."),
    Parameter(name="code", kind="int", default=1, minimum=0, maximum=999, doc="What the audio consists of."),
    Parameter(name="items", kind="int", default=5, minimum=0, maximum=100_000, doc="Items before the stop signal."),
    Parameter(name="max_items", kind="int", default=1000, minimum=1, maximum=100_000, doc="The loop's bound."),
    Parameter(name="rounds", kind="int", default=0, minimum=0, maximum=10_000, doc="Rounds of the counting loop."),
    Parameter(name="delay_ms", kind="float", default=0.0, minimum=0.0, maximum=10_000.0, doc="Time of a writer run."),
    Parameter(name="slow_speaker_ms", kind="float", default=0.0, minimum=0.0, doc="Time of a speaker run."),
    Parameter(name="fail", kind="str", default="", choices=("", "reader", "writer", "speaker"), doc="Who raises."),
    Parameter(name="fail_at", kind="int", default=0, minimum=0, doc="In which of its runs."),
)

NODES = (
    Node(
        name="reader",
        engine="stateless",
        inputs=(Port("prompt", "int64", ("characters",)),),
        outputs=(Port("item", "int64", ()), Port("stop", FLAG)),
        factory="mstar_core.testing.scripted_nodes:Reader",
    ),
    Node(
        name="writer",
        engine="stateless",
        inputs=(Port("last", "int64", ()),),
        outputs=(Port("item", "int64", ()), Port("sound", "float32", (), sparse=True), Port("stop", FLAG)),
        factory="mstar_core.testing.scripted_nodes:Writer",
    ),
    Node(
        name="speaker",
        engine="stateless",
        inputs=(Port("sounds", "float32", ()),),
        outputs=(Port("audio", "float32", ("samples",), sparse=True),),
        factory="mstar_core.testing.scripted_nodes:Speaker",
    ),
    Node(
        name="counter",
        engine="stateless",
        inputs=(Port("count", "int64", (), sparse=True),),
        outputs=(Port("count", "int64", ()),),
        factory="mstar_core.testing.scripted_nodes:Counter",
    ),
)

WALKS = WalkSet(
    walks=(
        Walk(name="prefill", partition="writing", body=Run("reader"), reports=("stop",)),
        Walk(
            name="write",
            partition="writing",
            body=DynamicLoop(Run("writer", inputs={"last": "item"}), at_most=Param("max_items"), until="stop"),
        ),
        Walk(
            name="count",
            partition="writing",
            body=Sequential(Loop(Run("counter"), times=Param("rounds"), gather=("count",)), Emit("count", "tensor")),
        ),
        Walk(
            name="speak",
            partition="speaking",
            body=DynamicLoop(
                Sequential(Run("speaker"), Emit("audio", "audio")), at_most=None, until=StreamEnd("speaker", "sounds")
            ),
        ),
    ),
    edges=(StreamingEdge(source="writer.sound", target="speaker.sounds", policy=FixedChunkPolicy(2)),),
    inputs=(RequestInput(name="prompt", dtype="int64", shape=("characters",), modality="text"),),
)


def sample_of(code: int, seed: int, step: int, *, high: bool = False) -> float:
    """The value of every sample of one item: the code in its thousandths, the seed and the step below them."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9) % 2**64
    value = code / 1000 + (mixed >> 54) / 1024 / 2000
    return value if high else -value


@dataclass(frozen=True, slots=True)
class _State:
    counts: bool
    writing: bool = True
    reason: str = "stop"


class ScriptedMachine:
    """prefill, then (when asked) count, then write; speaking runs beside them and ends the request."""

    def start(self, request: RequestView) -> Transition:
        """Read, and speak what will come."""
        return Transition(state=_State(counts=request.params["rounds"] > 0), start=(Start("prefill"), Start("speak")))

    def advance(self, state: _State, event: WalkEnded) -> Transition:
        """The next walk of `writing`; the end, when the speaker has spoken the last item."""
        match event.walk:
            case "prefill" if state.counts:
                return Transition(state=state, start=(Start("count"),))
            case "prefill" if event.flags["stop"]:
                return Transition(state=state, finish=("writing",))
            case "prefill" | "count":
                return Transition(state=state, start=(Start("write"),))
            case "write":
                reason = "length" if event.how == AT_MOST else "stop"
                return Transition(state=_State(state.counts, False, reason), finish=("writing",))
        return Transition(state=state, end=state.reason)

    def demand(self, request: RequestView) -> Mapping[str, int]:
        """No KV."""
        return {}


class ScriptedRenderer:
    """Audio as it comes; the counts of the counting loop as a tensor."""

    def output(self, modality: str, value: NDArray[Any]) -> Content | None:
        """The content of one emitted array."""
        return Audio(value, RATE) if modality == "audio" else Tensor("count", value)

    def finish(self) -> Sequence[Content]:
        """Nothing is held back."""
        return ()

    def usage(self, tokens: Mapping[str, int]) -> Mapping[str, int]:
        """No tokens are counted."""
        return {"input_tokens": 0, "output_tokens": 0}


class ScriptedProcessor:
    """Text to its code points."""

    def prepare(self, content: Sequence[Content], params: Mapping[str, Any]) -> Prepared:
        """One text that is not blank; anything else is refused."""
        import numpy as np

        if len(content) != 1 or not isinstance(content[0], Text):
            raise InvalidRequest("'input' must be one text", param="input")
        if not content[0].text.strip():
            raise InvalidRequest("'input' must not be blank", param="input")
        prompt = np.array([ord(character) for character in content[0].text], dtype=np.int64)
        return Prepared(inputs={"prompt": [prompt]}, params=params)

    def render(self, prepared: Prepared) -> ScriptedRenderer:
        """A renderer for one request."""
        return ScriptedRenderer()


@hookimpl
def mstar_models() -> list[ModelCard]:
    """The one model, `scripted`."""
    return [
        ModelCard(
            name="scripted",
            family="scripted",
            summary="does what its request says; for tests",
            inputs=("text",),
            outputs=("audio", "tensor"),
            checkpoints=(Checkpoint(name="tiny", source="mstar_core:testing"),),
            routes=("/v1/audio/speech",),
        )
    ]


@hookimpl
def mstar_config(card: ModelCard, checkpoint: Path) -> ModelConfig:
    """Nothing to configure."""
    return ModelConfig(values=None, parameters=PARAMETERS)


@hookimpl
def mstar_nodes(card: ModelCard, config: ModelConfig) -> tuple[Node, ...]:
    """The four nodes."""
    return NODES


@hookimpl
def mstar_walks(card: ModelCard, config: ModelConfig) -> WalkSet:
    """The four walks."""
    return WALKS


@hookimpl
def mstar_state_machine(card: ModelCard, config: ModelConfig) -> ScriptedMachine:
    """The machine."""
    return ScriptedMachine()


@hookimpl
def mstar_processor(card: ModelCard, config: ModelConfig, checkpoint: Path) -> ScriptedProcessor:
    """The processor."""
    return ScriptedProcessor()
