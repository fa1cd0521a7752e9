"""The plugin's hooks. Light: what needs torch, NumPy or a tokenizer is imported where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mstar_core import hookimpl
from mstar_core.spec.graph import Node, WalkSet
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig

if TYPE_CHECKING:
    from mstar_bagel.machine import BagelMachine
    from mstar_bagel.processor import BagelProcessor


@hookimpl
def mstar_models() -> list[ModelCard]:
    """The model `bagel`. The bundled checkpoint comes first, so that everything works before any download."""
    return [
        ModelCard(
            name="bagel",
            family="bagel",
            summary="texts and pictures in any order to a picture, or to an answer",
            inputs=("text", "image", "tensor"),
            outputs=("text", "image"),
            checkpoints=(
                Checkpoint(
                    name="tiny", source="mstar_bagel:checkpoints/tiny", summary="bundled, random weights: no pictures"
                ),
                Checkpoint(name="7b-mot", source="ByteDance-Seed/BAGEL-7B-MoT", summary="7 billion active weights"),
            ),
            routes=("/v1/chat/completions", "/v1/images/generations", "/v1/images/edits"),
        )
    ]


@hookimpl
def mstar_config(card: ModelCard, checkpoint: Path) -> ModelConfig:
    """The shape of a checkpoint, and what requests may set."""
    from mstar_bagel.config import BagelConfig
    from mstar_bagel.parameters import parameters

    config = BagelConfig.read(checkpoint)
    return ModelConfig(values=config, parameters=parameters(config), dtype=config.dtype)


@hookimpl
def mstar_nodes(card: ModelCard, config: ModelConfig) -> tuple[Node, ...]:
    """Eyes, language model, painter."""
    from mstar_bagel.walks import nodes

    return nodes(config.values)


@hookimpl
def mstar_walks(card: ModelCard, config: ModelConfig) -> WalkSet:
    """Reading, decoding, painting."""
    from mstar_bagel.walks import walks

    return walks(config.values)


@hookimpl
def mstar_state_machine(card: ModelCard, config: ModelConfig) -> BagelMachine:
    """Segments and pictures in order, then the answer or the picture."""
    from mstar_bagel.machine import BagelMachine

    return BagelMachine(config.values)


@hookimpl
def mstar_processor(card: ModelCard, config: ModelConfig, checkpoint: Path) -> BagelProcessor:
    """Tokenizer and resize rules."""
    from mstar_bagel.processor import BagelProcessor

    return BagelProcessor(config.values, checkpoint)
