"""The talker, which writes codes, and code2wav, which sounds them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mstar_qwen_omni.config.decoders import DecoderConfig, DenseDecoderConfig, rope_of

SAMPLE_RATE = 24_000
"""Hz of the model's speech (the model card); no configuration file states it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecIds:
    """Ids of the talker's vocabulary beside codes, and the id of every speaker by its name in lower case."""

    pad: int
    bos: int
    eos: int
    nothink: int
    think_bos: int
    think_eos: int
    speakers: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerConfig:
    """Decoder, code predictor, and what joins them to the thinker.

    `accept_layer` counts from the embeddings: k is the output of the thinker's layer number k - 1, from 0. Projections
    of the thinker's rows are `projection` wide inside.
    """

    decoder: DecoderConfig
    predictor: DenseDecoderConfig
    codec: CodecIds
    accept_layer: int
    thinker_hidden: int
    projection: int

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> TalkerConfig:
        """From `talker_config`; raises KeyError for what is missing, ValueError for what is not supported."""
        decoder = DecoderConfig.parse(values["text_config"])
        speakers = values["speaker_id"]
        return cls(
            decoder=decoder,
            predictor=DenseDecoderConfig.parse(values["code_predictor_config"]),
            codec=CodecIds(
                pad=values["codec_pad_id"],
                bos=values["codec_bos_id"],
                eos=values["codec_eos_token_id"],
                nothink=values["codec_nothink_id"],
                think_bos=values["codec_think_bos_id"],
                think_eos=values["codec_think_eos_id"],
                speakers={name.lower(): speakers[name] for name in sorted(speakers)},
            ),
            accept_layer=values["accept_hidden_layer"],
            thinker_hidden=values["thinker_hidden_size"],
            projection=decoder.inner,
        )

    @property
    def groups(self) -> int:
        """Codes of one frame."""
        return self.predictor.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Code2WavConfig:
    """The codec's decoder: a transformer with a sliding window, then two kinds of upsampling.

    `window` counts the frame itself; `ratios` are those of the ConvNeXt stages, `rates` those of the snake stages.
    """

    groups: int
    codebook: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    window: int
    channels: int
    ratios: tuple[int, ...]
    rates: tuple[int, ...]
    positions: int
    eps: float
    theta: float

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Code2WavConfig:
        """From `code2wav_config`; raises KeyError for what is missing, ValueError for what is not supported."""
        if values.get("hidden_act", "silu") != "silu" or values.get("attention_bias"):
            raise ValueError("code2wav must use silu and no attention biases")
        return cls(
            groups=values["num_quantizers"],
            codebook=values["codebook_size"],
            layers=values["num_hidden_layers"],
            hidden=values["hidden_size"],
            heads=values["num_attention_heads"],
            kv_heads=values["num_key_value_heads"],
            mlp=values["intermediate_size"],
            window=values["sliding_window"],
            channels=values["decoder_dim"],
            ratios=tuple(values["upsampling_ratios"]),
            rates=tuple(values["upsample_rates"]),
            positions=values["max_position_embeddings"],
            eps=values["rms_norm_eps"],
            theta=rope_of(values)["rope_theta"],
        )

    @property
    def head_dim(self) -> int:
        """Channels per head."""
        return self.hidden // self.heads

    @property
    def samples_per_frame(self) -> int:
        """How many samples one frame is stretched to."""
        return math.prod(self.ratios) * math.prod(self.rates)
