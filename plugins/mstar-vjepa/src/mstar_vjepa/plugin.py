"""The plugin's hooks. Light: what needs torch or NumPy is imported where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mstar_core import hookimpl
from mstar_core.spec.graph import Node, WalkSet
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig

if TYPE_CHECKING:
    from mstar_core.spec.content import Processor
    from mstar_core.spec.machine import StateMachine

CLIP, WORLD = "vjepa2", "vjepa2-ac"

_FAMILY = "vjepa"

_PUBLISHED = {
    "vitl-fpc64-256": "ViT-L, 256 pixels",
    "vith-fpc64-256": "ViT-H, 256 pixels",
    "vitg-fpc64-256": "ViT-g, 256 pixels",
    "vitg-fpc64-384": "ViT-g, 384 pixels",
    "vitl-fpc16-256-ssv2": "ViT-L with a classifier of 174 actions (Something-Something v2)",
    "vitg-fpc64-384-ssv2": "ViT-g with a classifier of 174 actions (Something-Something v2)",
    "vitl-fpc32-256-diving48": "ViT-L with a classifier of 48 dives (Diving48)",
    "vitg-fpc32-384-diving48": "ViT-g with a classifier of 48 dives (Diving48)",
}
"""Checkpoints under `facebook/vjepa2-` on the hub, and what they are."""


@hookimpl
def mstar_models() -> list[ModelCard]:
    """The models `vjepa2` and `vjepa2-ac`. The bundled checkpoints come first, so that everything works offline."""
    return [
        ModelCard(
            name=CLIP,
            family=_FAMILY,
            summary="video latents, masked prediction, video classification",
            inputs=("video", "image", "tensor"),
            outputs=("tensor", "text"),
            checkpoints=(
                Checkpoint(
                    name="tiny",
                    source="mstar_vjepa:checkpoints/clip-tiny",
                    summary="bundled, random weights, with a classifier of 4 labels",
                ),
                *(
                    Checkpoint(name=name, source=f"facebook/vjepa2-{name}", summary=summary)
                    for name, summary in _PUBLISHED.items()
                ),
            ),
            routes=("/v1/video/embeddings",),
        ),
        ModelCard(
            name=WORLD,
            family=_FAMILY,
            summary="action-conditioned world model: rollouts and planning in latent space",
            inputs=("image", "video", "tensor"),
            outputs=("tensor",),
            checkpoints=(
                Checkpoint(
                    name="tiny",
                    source="mstar_vjepa:checkpoints/world-tiny",
                    summary="bundled, random weights",
                    files=("*.pt",),
                ),
            ),
            routes=("/v1/world/rollouts", "/v1/world/plans"),
        ),
    ]


@hookimpl
def mstar_config(card: ModelCard, checkpoint: Path) -> ModelConfig:
    """A checkpoint's shape, and what requests may set."""
    if card.name == CLIP:
        from mstar_vjepa.clip.config import ClipConfig
        from mstar_vjepa.clip.parameters import parameters as clip_parameters

        clip = ClipConfig.read(checkpoint)
        return ModelConfig(values=clip, parameters=clip_parameters(clip), dtype=clip.dtype)
    from mstar_vjepa.world.config import WorldConfig
    from mstar_vjepa.world.parameters import parameters as world_parameters

    return ModelConfig(values=WorldConfig.read(checkpoint), parameters=world_parameters())


@hookimpl
def mstar_nodes(card: ModelCard, config: ModelConfig) -> tuple[Node, ...]:
    """The model's components."""
    if card.name == CLIP:
        from mstar_vjepa.clip import walks as clip

        return clip.nodes(config.values)
    from mstar_vjepa.world import walks as world

    return world.nodes(config.values)


@hookimpl
def mstar_walks(card: ModelCard, config: ModelConfig) -> WalkSet:
    """The model's walks."""
    if card.name == CLIP:
        from mstar_vjepa.clip import walks as clip

        return clip.walks(config.values)
    from mstar_vjepa.world import walks as world

    return world.walks(config.values)


@hookimpl
def mstar_state_machine(card: ModelCard, config: ModelConfig) -> StateMachine:
    """Which walks a request takes."""
    if card.name == CLIP:
        from mstar_vjepa.clip.machine import ClipMachine

        return ClipMachine()
    from mstar_vjepa.world.machine import WorldMachine

    return WorldMachine(config.values.slot)


@hookimpl
def mstar_processor(card: ModelCard, config: ModelConfig, checkpoint: Path) -> Processor:
    """Pictures, masks, poses and actions to tensors, and back."""
    if card.name == CLIP:
        from mstar_vjepa.clip.processor import ClipProcessor

        return ClipProcessor(config.values)
    from mstar_vjepa.world.processor import WorldProcessor

    return WorldProcessor(config.values)
