"""The plugin's hooks. Light: what needs torch or a tokenizer is imported where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mstar_core import hookimpl
from mstar_core.spec.graph import Node, WalkSet
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig

if TYPE_CHECKING:
    from mstar_qwen_omni.machine import QwenOmniMachine
    from mstar_qwen_omni.processor import QwenOmniProcessor


@hookimpl
def mstar_models() -> list[ModelCard]:
    """The model `qwen-omni`. The bundled checkpoint comes first, so that everything works before any download."""
    return [
        ModelCard(
            name="qwen-omni",
            family="qwen-omni",
            summary="text, pictures, sound and video in; text and speech out",
            inputs=("text", "image", "audio", "video"),
            outputs=("text", "audio"),
            checkpoints=(
                Checkpoint(
                    name="tiny",
                    source="mstar_qwen_omni:checkpoints/tiny",
                    summary="bundled, random weights: noise instead of sense",
                ),
                Checkpoint(
                    name="30b-a3b-instruct",
                    source="Qwen/Qwen3-Omni-30B-A3B-Instruct",
                    summary="35 B parameters, of which 3 B work on a token",
                ),
            ),
            routes=("/v1/chat/completions", "/v1/audio/speech"),
        )
    ]


@hookimpl
def mstar_config(card: ModelCard, checkpoint: Path) -> ModelConfig:
    """All parts' sizes, special ids and request parameters of a checkpoint."""
    from mstar_qwen_omni.config import QwenOmniConfig
    from mstar_qwen_omni.parameters import parameters

    config = QwenOmniConfig.read(checkpoint)
    return ModelConfig(values=config, parameters=parameters(config), dtype=config.dtype)


@hookimpl
def mstar_nodes(card: ModelCard, config: ModelConfig) -> tuple[Node, ...]:
    """`audio_encoder`, `vision_encoder`, `thinker`, `talker`, `code2wav`."""
    from mstar_qwen_omni.walks import nodes

    return nodes(config.values)


@hookimpl
def mstar_walks(card: ModelCard, config: ModelConfig) -> WalkSet:
    """Those of thinker, talker and vocoder."""
    from mstar_qwen_omni.walks import walks

    return walks(config.values)


@hookimpl
def mstar_state_machine(card: ModelCard, config: ModelConfig) -> QwenOmniMachine:
    """Media in order, the reply, speech beside it."""
    from mstar_qwen_omni.machine import QwenOmniMachine

    return QwenOmniMachine()


@hookimpl
def mstar_processor(card: ModelCard, config: ModelConfig, checkpoint: Path) -> QwenOmniProcessor:
    """Tokenizer, prompt layout and media."""
    from mstar_qwen_omni.processor import QwenOmniProcessor

    return QwenOmniProcessor(config.values, checkpoint)
