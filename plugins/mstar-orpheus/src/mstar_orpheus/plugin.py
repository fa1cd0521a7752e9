"""The plugin's hooks. Light: what needs torch or a tokenizer is imported where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mstar_core import hookimpl
from mstar_core.spec.graph import Node, WalkSet
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig

if TYPE_CHECKING:
    from mstar_orpheus.machine import OrpheusMachine
    from mstar_orpheus.processor import OrpheusProcessor


@hookimpl
def mstar_models() -> list[ModelCard]:
    """The model `orpheus`. The bundled checkpoint comes first, so that everything works before any download."""
    return [
        ModelCard(
            name="orpheus",
            family="orpheus",
            summary="text to speech with emotion tags, 24 kHz",
            inputs=("text",),
            outputs=("audio",),
            checkpoints=(
                Checkpoint(
                    name="tiny",
                    source="mstar_orpheus:checkpoints/tiny",
                    summary="bundled, random weights: noise instead of speech",
                ),
                Checkpoint(name="3b-ft", source="canopylabs/orpheus-3b-0.1-ft", summary="English, eight voices"),
                Checkpoint(name="3b-pretrained", source="canopylabs/orpheus-3b-0.1-pretrained", summary="base model"),
            ),
            routes=("/v1/audio/speech",),
        )
    ]


@hookimpl
def mstar_config(card: ModelCard, checkpoint: Path) -> ModelConfig:
    """Language model, codec, special ids and request parameters of a checkpoint."""
    from mstar_orpheus.config import OrpheusConfig
    from mstar_orpheus.parameters import parameters

    config = OrpheusConfig.read(checkpoint)
    return ModelConfig(values=config, parameters=parameters(config.llama.positions), dtype=config.llama.dtype)


@hookimpl
def mstar_nodes(card: ModelCard, config: ModelConfig) -> tuple[Node, ...]:
    """`lm` and `snac`."""
    from mstar_orpheus.walks import nodes

    return nodes(config.values)


@hookimpl
def mstar_walks(card: ModelCard, config: ModelConfig) -> WalkSet:
    """`prefill`, `decode`, `vocode`."""
    from mstar_orpheus.walks import walks

    return walks(config.values)


@hookimpl
def mstar_state_machine(card: ModelCard, config: ModelConfig) -> OrpheusMachine:
    """Segments in order, the codec beside them."""
    from mstar_orpheus.machine import OrpheusMachine

    return OrpheusMachine()


@hookimpl
def mstar_processor(card: ModelCard, config: ModelConfig, checkpoint: Path) -> OrpheusProcessor:
    """Tokenizer and prompt layout."""
    from mstar_orpheus.processor import OrpheusProcessor

    return OrpheusProcessor(config.values, checkpoint)
