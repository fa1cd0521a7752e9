"""Nodes, walks and the streaming edge.

speech:   prefill(prompt) -> decode(token)*   one round for each segment of the text
                    |  frames of 7 codes, as they are complete
vocoder:  vocode(frames)* -> audio to the client
"""

from __future__ import annotations

from mstar_core.spec.chunks import GrowingContextChunkPolicy
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
    StreamEnd,
    StreamingEdge,
    Walk,
    WalkSet,
)
from mstar_orpheus.codec.chunks import COMPAT_CONTEXT, context_frames, first_audio_frames
from mstar_orpheus.config import OrpheusConfig

_LATER_CHUNKS = (1, 2, 4, 8)
"""New frames of later chunks: the client's playback buffer grows, and context is recomputed less often."""


def nodes(config: OrpheusConfig) -> tuple[Node, ...]:
    """The language model and the codec."""
    slots = config.snac.ids_per_frame
    return (
        Node(
            name="lm",
            engine="kv_cache",
            inputs=(Port("ids", "int64", tokens=0),),
            outputs=(Port("token", "int64", ()), Port("stop", FLAG), Port("frame", "int64", (slots,), sparse=True)),
            factory="mstar_orpheus.lm:LanguageModel",
        ),
        Node(
            name="snac",
            engine="stateless",
            inputs=(Port("frames", "int64", (slots,)),),
            outputs=(Port("audio", "float32", ("samples",), sparse=True),),
            factory="mstar_orpheus.vocoder:Vocoder",
        ),
    )


def walks(config: OrpheusConfig) -> WalkSet:
    """Prefill and decode in one partition, the codec in the other."""
    context = max(context_frames(config.snac), COMPAT_CONTEXT)
    policy = GrowingContextChunkPolicy((first_audio_frames(config.snac), *_LATER_CHUNKS), context)
    sound = Sequential(Run("snac"), Emit("audio", "audio"))
    return WalkSet(
        walks=(
            Walk(name="prefill", partition="speech", body=Run("lm", inputs={"ids": "prompt"}), reports=("stop",)),
            Walk(
                name="decode",
                partition="speech",
                body=DynamicLoop(Run("lm", inputs={"ids": "token"}), at_most=Param("max_tokens", -1), until="stop"),
            ),
            Walk(
                name="vocode",
                partition="vocoder",
                body=DynamicLoop(sound, at_most=None, until=StreamEnd("snac", "frames")),
            ),
        ),
        edges=(StreamingEdge(source="lm.frame", target="snac.frames", policy=policy),),
        inputs=(RequestInput(name="prompt", dtype="int64", shape=("ids",), modality="text", many=True),),
    )
