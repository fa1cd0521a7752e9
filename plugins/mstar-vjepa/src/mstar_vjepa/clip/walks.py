"""Nodes and walks of `vjepa2`: one walk per task, each of which encodes the clip first."""

from __future__ import annotations

from mstar_core.spec.graph import Element, Emit, Node, Port, RequestInput, Run, Sequential, Walk, WalkSet
from mstar_vjepa.clip.config import ClipConfig
from mstar_vjepa.config import CHANNELS


def nodes(config: ClipConfig) -> tuple[Node, ...]:
    """Encoder, predictor, and the classifier where there is one."""
    width = config.encoder.hidden
    latents = Port("latents", "float32", ("tokens", width))
    masks = (
        Port("context_mask", "int64", ("context",), sparse=True),
        Port("target_mask", "int64", ("n",), sparse=True),
    )
    module = "mstar_vjepa.clip"
    encoder = Node(
        name="encoder",
        engine="stateless",
        inputs=(Port("pixels", "float32", _pixels(config)),),
        outputs=(latents,),
        factory=f"{module}.encoder:ClipEncoder",
    )
    predictor = Node(
        name="predictor",
        engine="stateless",
        inputs=(latents, *masks),
        outputs=(Port("predictions", "float32", ("targets", width)),),
        factory=f"{module}.predictor:Predictor",
    )
    if config.head is None:
        return encoder, predictor
    classifier = Node(
        name="classifier",
        engine="stateless",
        inputs=(latents,),
        outputs=(Port("logits", "float32", (len(config.head.labels),)),),
        factory=f"{module}.classifier:Classifier",
    )
    return encoder, predictor, classifier


def walks(config: ClipConfig) -> WalkSet:
    """`encode`, `predict`, and `classify` where the checkpoint can."""
    see = Run("encoder")
    bodies: dict[str, Element] = {
        "encode": Sequential(see, Emit("latents", "tensor")),
        "predict": Sequential(see, Run("predictor"), Emit("predictions", "tensor")),
    }
    if config.head is not None:
        shown = (Emit("logits", "tensor"), Emit("logits", "text"))
        bodies["classify"] = Sequential(see, Run("classifier"), *shown)
    return WalkSet(
        walks=tuple(Walk(name=name, partition="clip", body=body) for name, body in bodies.items()),
        inputs=(
            RequestInput(name="pixels", dtype="float32", shape=_pixels(config), modality="video"),
            RequestInput(name="context_mask", dtype="int64", shape=("context",), optional=True),
            RequestInput(name="target_mask", dtype="int64", shape=("n",), optional=True),
        ),
    )


def _pixels(config: ClipConfig) -> tuple[int | str, ...]:
    return ("frames", CHANNELS, config.patches.height, config.patches.width)
