"""The toy painter: a plugin through the public API that says what it was given, in order, and paints a picture of it.

    writer   [write]   a DynamicLoop, some bytes of text a round: what was said and shown, by whom
    painter  [paint]   a Loop of `steps` rounds, each reports its progress; then the picture, [height, width, 3]

Text and picture depend on every text, picture, their order and roles, and on the seed: the text only when
`temperature` is not 0. So a test knows which of its bytes came through.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar_core.errors import InvalidRequest
from mstar_core.plugins.hookspecs import hookimpl
from mstar_core.spec.content import PROGRESS, Content, Image, Prepared, Text
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
from mstar_core.spec.machine import AT_MOST, RequestView, Start, Transition, WalkEnded
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig
from mstar_core.spec.params import Parameter

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROUTES = ("/v1/chat/completions", "/v1/images/generations", "/v1/images/edits")

WIDTH, HEIGHT = 64, 48
"""Of pictures of which no size was asked for."""

GRID = 16
"""Sizes are multiples of it."""

PIECE = 4
"""Bytes of text a round."""

PARAMETERS = (
    Parameter(name="steps", kind="int", default=4, minimum=1, maximum=1000, doc="Rounds of painting."),
    Parameter(name="width", kind="int", minimum=GRID, maximum=256, doc="Pixels, a multiple of 16."),
    Parameter(name="height", kind="int", minimum=GRID, maximum=256, doc="Pixels, a multiple of 16."),
    Parameter(name="temperature", kind="float", default=0.0, minimum=0, maximum=2, doc="0: the same for every seed."),
    Parameter(name="max_tokens", kind="int", default=1000, minimum=1, maximum=10_000, doc="Rounds of writing."),
    Parameter(name="delay_ms", kind="float", default=0.0, minimum=0.0, maximum=10_000.0, doc="Time of a round."),
    Parameter(name="fail_at", kind="int", default=-1, minimum=-1, doc="The step in which the painter raises."),
)

_STORY = Port("story", "uint8", ("bytes",))
_PLACE = Port("place", "int64", ())
_PICTURE = Port("picture", "uint8", ("height", "width", 3))

NODES = (
    Node(
        name="writer",
        engine="stateless",
        inputs=(_STORY, Port("place", "int64", (), sparse=True)),
        outputs=(Port("piece", "uint8", ("bytes",)), _PLACE, Port("stop", FLAG)),
        factory="mstar_core.testing.toy_painter_nodes:Writer",
    ),
    Node(
        name="painter",
        engine="stateless",
        inputs=(_STORY, Port("picture", "uint8", ("height", "width", 3), sparse=True)),
        outputs=(_PICTURE, Port("progress", "int64", (2,))),
        factory="mstar_core.testing.toy_painter_nodes:Painter",
    ),
)

WALKS = WalkSet(
    walks=(
        Walk(
            name="write",
            partition="writing",
            body=DynamicLoop(Sequential(Run("writer"), Emit("piece", "text")), Param("max_tokens"), until="stop"),
        ),
        Walk(
            name="paint",
            partition="painting",
            body=Sequential(
                Loop(Sequential(Run("painter"), Emit("progress", PROGRESS)), times=Param("steps")),
                Emit("picture", "image"),
            ),
        ),
    ),
    inputs=(RequestInput(name="story", dtype="uint8", shape=("bytes",)),),
)


class ToyPainterMachine:
    """Writes, if text is wanted, and then paints, if a picture is."""

    def start(self, request: RequestView) -> Transition:
        """The first of the walks."""
        walks = tuple(walk for walk, made in (("write", "text"), ("paint", "image")) if made in request.outputs)
        return Transition(state=(walks[1:], "stop"), start=(Start(walks[0]),))

    def advance(self, state: tuple[tuple[str, ...], str], event: WalkEnded) -> Transition:
        """The next walk, or the end; the text's length decides why."""
        walks, reason = state
        if event.walk == "write" and event.how == AT_MOST:
            reason = "length"
        if walks:
            return Transition(state=(walks[1:], reason), start=(Start(walks[0]),))
        return Transition(state=state, end=reason)

    def demand(self, request: RequestView) -> Mapping[str, int]:
        """No KV."""
        return {}


class ToyPainterRenderer:
    """Pieces of UTF-8 to text; pictures as they are. Counts the story's bytes, and the pieces."""

    def __init__(self, read: int) -> None:
        self._read = read
        self._written = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def output(self, modality: str, value: NDArray[Any]) -> Content | None:
        """The content of one emitted array; None while a character is cut in two."""
        if modality == "image":
            return Image(value)
        self._written += 1
        text = self._decoder.decode(value.tobytes())
        return Text(text) if text else None

    def finish(self) -> Sequence[Content]:
        """Nothing is held back."""
        return []

    def usage(self, tokens: Mapping[str, int]) -> Mapping[str, int]:
        """Bytes of the story, and pieces of the answer."""
        return {"input_tokens": self._read, "output_tokens": self._written}


class ToyPainterProcessor:
    """Texts and pictures to one story: a line each, with who said it; of a picture its size and mean colour."""

    def prepare(self, content: Sequence[Content], params: Mapping[str, Any]) -> Prepared:
        """The story, uint8 [bytes]; sizes off the grid are refused."""
        import numpy as np

        for name in ("width", "height"):
            if params[name] is not None and params[name] % GRID:
                raise InvalidRequest(f"{name!r} must be a multiple of {GRID}, got {params[name]}", param=name)
        story = "\n".join(map(line_of, content)).encode()
        size = {"width": params["width"] or WIDTH, "height": params["height"] or HEIGHT}
        return Prepared(inputs={"story": [np.frombuffer(story, np.uint8)]}, params={**params, **size})

    def render(self, prepared: Prepared) -> ToyPainterRenderer:
        """A renderer for one request."""
        return ToyPainterRenderer(len(prepared.inputs["story"][0]))


def line_of(piece: Content) -> str:
    """What a story says of a text or a picture."""
    match piece:
        case Text(text):
            return f"{piece.role}: {text}"
        case Image(pixels):
            colour = pixels.reshape(-1, 3).mean(axis=0).round().astype(int).tolist()
            return f"{piece.role}: <{pixels.shape[1]}x{pixels.shape[0]} {colour}>"
    raise InvalidRequest("only texts and pictures can be told", param="input")


@hookimpl
def mstar_models() -> list[ModelCard]:
    """The one model, `toy-painter`."""
    return [
        ModelCard(
            name="toy-painter",
            family="toy-painter",
            summary="says and paints what it is given; for tests",
            inputs=("text", "image"),
            outputs=("text", "image"),
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
    """The two nodes."""
    return NODES


@hookimpl
def mstar_walks(card: ModelCard, config: ModelConfig) -> WalkSet:
    """The two walks."""
    return WALKS


@hookimpl
def mstar_state_machine(card: ModelCard, config: ModelConfig) -> ToyPainterMachine:
    """The machine."""
    return ToyPainterMachine()


@hookimpl
def mstar_processor(card: ModelCard, config: ModelConfig, checkpoint: Path) -> ToyPainterProcessor:
    """The processor."""
    return ToyPainterProcessor()
