"""Nodes and walks. The state machine puts the walks of a request in order; all share one partition, and the cache.

answer:   (read_text | read_picture)* -> decode
picture:  (prefill_text | prefill_vae, prefill_vit)* -> prefill_prompt -> (think -> prefill_thought) -> image_gen

`llm_text` and `llm_image` run only where they are placed; elsewhere `llm` does their work.
"""

from __future__ import annotations

from mstar_bagel.config import CHANNELS, BagelConfig
from mstar_core.spec.content import PROGRESS
from mstar_core.spec.graph import (
    FLAG,
    DynamicLoop,
    Element,
    Emit,
    Loop,
    Node,
    Parallel,
    Param,
    Port,
    RequestInput,
    Run,
    Sequential,
    Walk,
    WalkSet,
)

PARTITION = "bagel"

_PICTURE = ("height", "width", CHANNELS)
_VIT, _VAE = "mstar_bagel.vision.nodes:VisionEncoder", "mstar_bagel.vision.nodes:LatentEncoder"
_LLM = "mstar_bagel.llm.nodes:LanguageModel"


def nodes(config: BagelConfig) -> tuple[Node, ...]:
    """Eyes, language model, painter."""
    return (*_eyes(config), *_language_models(config), *_painters(config))


def _eyes(config: BagelConfig) -> tuple[Node, ...]:
    picture = Port("picture", "uint8", _PICTURE)
    latent = (config.vae.channels, "latent_height", "latent_width")
    return (
        Node(
            name="vit",
            engine="stateless",
            inputs=(picture,),
            outputs=(Port("rows", shape=("patches", config.llm.hidden)),),
            factory=_VIT,
        ),
        Node(
            name="vae_encoder",
            engine="stateless",
            inputs=(picture, Port("posterior_noise", "float32", latent, sparse=True)),
            outputs=(Port("tokens", "float32", ("tokens", config.latent_width)), Port("grid", "int64", (2,))),
            factory=_VAE,
        ),
    )


def _language_models(config: BagelConfig) -> tuple[Node, ...]:
    latents = ("tokens", config.latent_width)
    ids = Port("ids", "int64", ("ids",), sparse=True, tokens=0)
    rows = Port("rows", shape=("patches", config.llm.hidden), sparse=True)
    tokens, grid = Port("latents", "float32", latents, sparse=True), Port("grid", "int64", (2,), sparse=True)
    time = Port("time", "float32", (), sparse=True)
    velocities = tuple(
        Port(name, "float32", latents, sparse=True)
        for name in ("velocity", "velocity_text", "velocity_image", "apart_text", "apart_image")
    )
    said = (
        Port("token", "int64", (), sparse=True),
        Port("said", "int64", (), sparse=True),
        Port("stop", FLAG, sparse=True),
    )
    return (
        Node(
            name="llm",
            engine="kv_cache",
            inputs=(Port("ids", "int64", sparse=True, tokens=0), rows, tokens, grid, time),
            outputs=(*said, *velocities[:3]),
            factory=_LLM,
        ),
        Node(
            name="llm_text",
            engine="kv_cache",
            inputs=(ids, rows, tokens, grid, time),
            outputs=(velocities[3],),
            factory=_LLM,
            optional=True,
        ),
        Node(
            name="llm_image",
            engine="kv_cache",
            inputs=(ids, tokens, time),
            outputs=(velocities[4],),
            factory=_LLM,
            optional=True,
        ),
    )


def _painters(config: BagelConfig) -> tuple[Node, ...]:
    latents = ("tokens", config.latent_width)
    given = ("noise", "latents", "velocity", "velocity_text", "velocity_image", "apart_text", "apart_image")
    return (
        Node(
            name="thought",
            engine="stateless",
            inputs=(Port("said", "int64", sparse=True),),
            outputs=(Port("segment", "int64", ("ids",)),),
            factory="mstar_bagel.llm.thought:Thought",
        ),
        Node(
            name="guidance",
            engine="stateless",
            inputs=tuple(Port(name, "float32", latents, sparse=True) for name in given),
            outputs=(
                Port("latents", "float32", latents),
                Port("time", "float32", ()),
                Port("progress", "int64", (2,), sparse=True),
            ),
            factory="mstar_bagel.painter:Guidance",
        ),
        Node(
            name="vae_decoder",
            engine="stateless",
            inputs=(Port("tokens", "float32", latents),),
            outputs=(Port("picture", "uint8", _PICTURE),),
            factory="mstar_bagel.vision.nodes:LatentDecoder",
        ),
    )


def walks(config: BagelConfig) -> WalkSet:
    """All walks, and what requests bring."""
    see = Run("vit", inputs={"picture": "content"}, outputs={"rows": "seen"})
    encode = Run("vae_encoder", inputs={"picture": "pictures"}, outputs={"tokens": "encoded", "grid": "encoded_grid"})
    encoded = {"latents": "encoded", "grid": "encoded_grid"}
    bodies: dict[str, Element] = {
        "read_system": _read("think_to_answer", "llm"),
        "read_text": _read("content", "llm"),
        "read_picture": Sequential(see, Run("llm", inputs={"rows": "seen"})),
        "decode": _decode("max_tokens"),
        "prefill_system": _read("think_to_paint", "llm", "llm_text", "llm_image"),
        "prefill_text": _read("content", "llm", "llm_text", "llm_image"),
        "prefill_prompt": _read("content", "llm", "llm_image"),
        "prefill_vae": Sequential(encode, Parallel(*(Run(name, inputs=encoded) for name in ("llm", "llm_text")))),
        "prefill_vit": Sequential(see, Parallel(*(Run(name, inputs={"rows": "seen"}) for name in ("llm", "llm_text")))),
        "think": Sequential(
            _decode("max_think_tokens", gather=("token",)),
            Run("thought", inputs={"said": "token"}, outputs={"segment": "thought"}),
        ),
        "prefill_thought": _read("thought", "llm"),
        "image_gen": _paint(),
    }
    latents = ("tokens", config.latent_width)
    posterior = (config.vae.channels, "latent_height", "latent_width")
    return WalkSet(
        walks=tuple(Walk(name=name, partition=PARTITION, body=body) for name, body in bodies.items()),
        inputs=(
            RequestInput(name="content", shape=("ids",), alternatives=(_PICTURE,), many=True),
            RequestInput(name="pictures", dtype="uint8", shape=_PICTURE, modality="image", many=True, optional=True),
            RequestInput(name="think_to_answer", dtype="int64", shape=("ids",), modality="text", optional=True),
            RequestInput(name="think_to_paint", dtype="int64", shape=("ids",), modality="text", optional=True),
            RequestInput(name="noise", dtype="float32", shape=latents, optional=True),
            RequestInput(name="posterior_noise", dtype="float32", shape=posterior, many=True, optional=True),
        ),
    )


def _read(signal: str, *names: str) -> Element:
    """A text, appended by each of these nodes to what it holds."""
    readers = [Run(name, inputs={"ids": signal}) for name in names]
    return readers[0] if len(readers) == 1 else Parallel(*readers)


def _decode(at_most: str, gather: tuple[str, ...] = ()) -> DynamicLoop:
    """One id a round, each fed to the next."""
    body = Sequential(Run("llm", inputs={"ids": "token"}), Emit("said", "text"))
    return DynamicLoop(body, at_most=Param(at_most), until="stop", gather=gather)


def _paint() -> Sequential:
    """Noise, then a velocity and a step each round, then the picture."""
    now = {"latents": "painted", "time": "painted_at"}
    moved = Run("guidance", inputs={"latents": "painted"}, outputs={"latents": "painted", "time": "painted_at"})
    velocities = Parallel(*(Run(name, inputs=now) for name in ("llm", "llm_text", "llm_image")))
    step = Sequential(velocities, moved, Emit("progress", PROGRESS))
    picture = Run("vae_decoder", inputs={"tokens": "painted"})
    return Sequential(moved, Loop(step, times=Param("steps", -1)), picture, Emit("picture", "image"))
