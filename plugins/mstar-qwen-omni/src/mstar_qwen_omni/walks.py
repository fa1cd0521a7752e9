"""Nodes, walks and streaming edges.

thinker:  hear(clip)*  see(picture)*  ->  read | read_aloud  ->  write(token)*        text to the client
              |  the user's turns, then every token that is fed back
talker:   listen(turns)  ->  talk(frame)*
              |  codes
vocoder:  sound(codes)*                                                               audio to the client
"""

from __future__ import annotations

from mstar_core.spec.chunks import FixedChunkPolicy
from mstar_core.spec.graph import (
    FLAG,
    DynamicLoop,
    Element,
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
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.speech.chunks import CHUNKS

THINKER, TALKER, VOCODER = "thinker", "talker", "vocoder"
"""The partitions."""

_POSITIONS = (3, "tokens")
_TURNS = ("turns", 2)


def nodes(config: QwenOmniConfig) -> tuple[Node, ...]:
    """Encoders, thinker, talker, code2wav."""
    return (*_encoders(config), _thinker(config), *_speech(config))


def _encoders(config: QwenOmniConfig) -> tuple[Node, ...]:
    hidden, levels = config.thinker.hidden, len(config.vision.deepstack)
    return (
        Node(
            name="audio_encoder",
            engine="stateless",
            inputs=(Port("clips", "float32", (config.audio.mel_bins, "frames")), Port("widths", "int64", ())),
            outputs=(Port("heard", "float32", ("rows", hidden)),),
            factory="mstar_qwen_omni.encoders.nodes:AudioEncoder",
        ),
        Node(
            name="vision_encoder",
            engine="stateless",
            inputs=(
                Port("pictures", "uint8", ("patches", config.vision.patch_values)),
                Port("grids", "int64", (3,)),
            ),
            outputs=(
                Port("seen", "float32", ("rows", hidden)),
                Port("deep", "float32", (levels, "rows", hidden)),
            ),
            factory="mstar_qwen_omni.encoders.nodes:VisionEncoder",
        ),
    )


def _thinker(config: QwenOmniConfig) -> Node:
    hidden, levels = config.thinker.hidden, len(config.vision.deepstack)
    return Node(
        name="thinker",
        engine="kv_cache",
        inputs=(
            Port("said", "int64", sparse=True, tokens=0),
            Port("places", "float32", _POSITIONS, sparse=True),
            Port("user_turns", "int64", _TURNS, sparse=True),
            Port("sound", "float32", ("rows", hidden), sparse=True),
            Port("sight", "float32", ("rows", hidden), sparse=True),
            Port("depth", "float32", (levels, "rows", hidden), sparse=True),
        ),
        outputs=(
            Port("token", "int64", (), sparse=True),
            Port("shown", "int64", (), sparse=True),
            Port("stop", FLAG, sparse=True),
            Port("spoken", shape=("rows", "width"), sparse=True),
        ),
        factory="mstar_qwen_omni.thinker.node:Thinker",
    )


def _speech(config: QwenOmniConfig) -> tuple[Node, ...]:
    groups = config.talker.groups
    return (
        Node(
            name="talker",
            engine="kv_cache",
            inputs=(
                Port("text", shape=("rows", "width")),
                Port("turns", "int64", _TURNS),
                Port("positions", "float32", _POSITIONS),
                Port("feedback", sparse=True),
            ),
            outputs=(
                Port("feedback", sparse=True),
                Port("codes", "int64", (groups,), sparse=True),
                Port("stop", FLAG, sparse=True),
            ),
            factory="mstar_qwen_omni.speech.node:TalkerNode",
        ),
        Node(
            name="code2wav",
            engine="stateless",
            inputs=(Port("codes", "int64", (groups,)),),
            outputs=(Port("audio", "float32", ("samples",), sparse=True),),
            factory="mstar_qwen_omni.speech.vocoder:Vocoder",
        ),
    )


def walks(config: QwenOmniConfig) -> WalkSet:
    """All walks, the two streams, and what requests bring."""
    return WalkSet(
        walks=(*_thinking(), *_speaking()),
        edges=(
            # Text never waits for speech: there is room for all that a request can say.
            StreamingEdge(
                source="thinker.spoken",
                target="talker.text",
                policy=FixedChunkPolicy(1),
                capacity=config.thinker.positions,
                outlives=True,
            ),
            StreamingEdge(source="talker.codes", target="code2wav.codes", policy=CHUNKS),
        ),
        inputs=(
            RequestInput(name="ids", dtype="int64", shape=("tokens",), modality="text"),
            RequestInput(name="positions", dtype="float32", shape=_POSITIONS),
            RequestInput(name="turns", dtype="int64", shape=_TURNS),
            RequestInput(
                name="clips",
                dtype="float32",
                shape=(config.audio.mel_bins, "frames"),
                modality="audio",
                many=True,
                optional=True,
            ),
            RequestInput(name="widths", dtype="int64", shape=(), many=True, optional=True),
            RequestInput(
                name="pictures",
                dtype="uint8",
                shape=("patches", config.vision.patch_values),
                modality="image",
                many=True,
                optional=True,
            ),
            RequestInput(name="grids", dtype="int64", shape=(3,), many=True, optional=True),
        ),
    )


def _thinking() -> tuple[Walk, ...]:
    prompt = {"said": "ids", "places": "positions"}
    bodies: dict[str, Element] = {
        "hear": Sequential(Run("audio_encoder"), Run("thinker", inputs={"sound": "heard"})),
        "see": Sequential(Run("vision_encoder"), Run("thinker", inputs={"sight": "seen", "depth": "deep"})),
        "read": _shown(Run("thinker", inputs=prompt)),
        "read_aloud": _shown(Run("thinker", inputs={**prompt, "user_turns": "turns"})),
        "write": DynamicLoop(
            _shown(Run("thinker", inputs={"said": "token"})), at_most=Param("max_tokens", -1), until="stop"
        ),
    }
    return tuple(
        Walk(name=name, partition=THINKER, body=body, reports=("stop",) if name.startswith("read") else ())
        for name, body in bodies.items()
    )


def _shown(run: Run) -> Sequential:
    return Sequential(run, Emit("shown", "text"))


def _speaking() -> tuple[Walk, ...]:
    talk = DynamicLoop(Run("talker"), at_most=Param("max_audio_frames"), until="stop")
    sound = DynamicLoop(
        Sequential(Run("code2wav"), Emit("audio", "audio")), at_most=None, until=StreamEnd("code2wav", "codes")
    )
    return (
        Walk(name="listen", partition=TALKER, body=Loop(Run("talker"), 1)),
        Walk(name="talk", partition=TALKER, body=talk),
        Walk(name="sound", partition=VOCODER, body=sound),
    )
