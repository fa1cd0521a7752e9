"""A whole checkpoint: `config.json`, `generation_config.json`, and the tokenizer's words.

Both spellings of `config.json` are read: that of the published checkpoint, and that of files written by transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar_core.checkpoints import read_config
from mstar_core.errors import CheckpointError
from mstar_qwen_omni.config.decoders import DecoderConfig
from mstar_qwen_omni.config.encoders import AudioConfig, VisionConfig
from mstar_qwen_omni.config.ids import SpecialIds, vocabulary
from mstar_qwen_omni.config.speech import Code2WavConfig, TalkerConfig

_MODEL_TYPE = "qwen3_omni_moe"


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenOmniConfig:
    """All parts of the model; `positions_per_second` is how fast rotary positions of videos advance."""

    thinker: DecoderConfig
    audio: AudioConfig
    vision: VisionConfig
    talker: TalkerConfig
    code2wav: Code2WavConfig
    ids: SpecialIds
    positions_per_second: int
    dtype: str

    @classmethod
    def read(cls, checkpoint: Path) -> QwenOmniConfig:
        """Read a checkpoint directory; raises `CheckpointError` that names the file and what is missing or wrong."""
        try:
            words = vocabulary(checkpoint)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{checkpoint}: no tokenizer can be read from tokenizer.json, nor from vocab.json with "
                f"tokenizer_config.json: {error}"
            ) from error
        stops = _stops(checkpoint / "generation_config.json")
        config = read_config(checkpoint / "config.json", lambda values: cls.parse(values, words, stops))
        config.check(checkpoint)
        return config

    @classmethod
    def parse(cls, values: Mapping[str, Any], words: Mapping[str, int], stops: tuple[int, ...] = ()) -> QwenOmniConfig:
        """From `config.json` and the tokenizer's words; raises KeyError for what is missing and ValueError for what is
        not supported."""
        if values["model_type"] != _MODEL_TYPE:
            raise ValueError(f"model_type is {values['model_type']!r}, not {_MODEL_TYPE!r}")
        thinker = values["thinker_config"]
        return cls(
            thinker=DecoderConfig.parse(thinker["text_config"]),
            audio=AudioConfig.parse(thinker["audio_config"]),
            vision=VisionConfig.parse(thinker["vision_config"]),
            talker=TalkerConfig.parse(values["talker_config"]),
            code2wav=Code2WavConfig.parse(values["code2wav_config"]),
            ids=SpecialIds.parse(values, words, stops),
            positions_per_second=thinker["position_id_per_seconds"],
            dtype=values.get("dtype") or values.get("torch_dtype") or thinker.get("dtype") or "bfloat16",
        )

    def check(self, where: Path) -> None:
        """Raise `CheckpointError` where the parts do not fit each other."""
        sizes = {
            "audio_config.output_dim": self.audio.output,
            "vision_config.out_hidden_size": self.vision.output,
            "talker_config.thinker_hidden_size": self.talker.thinker_hidden,
        }
        for name, size in sizes.items():
            if size != self.thinker.hidden:
                raise CheckpointError(
                    f"{where / 'config.json'}: {name} is {size}, but the thinker's hidden_size is {self.thinker.hidden}"
                )
        if self.talker.groups != self.code2wav.groups:
            raise CheckpointError(
                f"{where / 'config.json'}: the talker writes {self.talker.groups} codes a frame, code2wav reads "
                f"{self.code2wav.groups}"
            )


def _stops(path: Path) -> tuple[int, ...]:
    """The ids that end a reply, of which the file may name one or several; none without the file."""
    if not path.is_file():
        return ()
    given = read_config(path, lambda values: values.get("eos_token_id"))
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list) else (given,)
