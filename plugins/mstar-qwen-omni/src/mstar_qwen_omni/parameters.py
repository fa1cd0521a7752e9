"""What a client may set, with the reference's defaults (Hugging Face transformers, `generate` of Qwen3-Omni)."""

from __future__ import annotations

from mstar_core.spec.params import Parameter
from mstar_qwen_omni.config import QwenOmniConfig

_VOICE = "ethan"
"""The reference's speaker."""

_MOST_FRAMES = 4096
"""The reference's limit of the talker's tokens: 5.5 minutes of 12.5 frames a second."""

_MOST_TOKENS = 1024
"""The reference's limit of the thinker's tokens."""


def parameters(config: QwenOmniConfig) -> tuple[Parameter, ...]:
    """The request parameters of a checkpoint."""
    return (
        *_lengths(config),
        *_sampler("", "text", temperature=0.0, top_k=50, top_p=1.0),
        _penalty("repetition_penalty", 1.0, "ids of the prompt and of the reply so far"),
        *_speech(config),
        *_media(),
    )


def _lengths(config: QwenOmniConfig) -> tuple[Parameter, ...]:
    return (
        Parameter(
            name="max_tokens",
            kind="int",
            default=min(_MOST_TOKENS, config.thinker.positions // 2),
            minimum=1,
            maximum=config.thinker.positions,
            doc="The most tokens of a reply, the one that ends it included; a reply cut short ends as 'length'.",
        ),
        Parameter(
            name="max_audio_frames",
            kind="int",
            default=min(_MOST_FRAMES, config.talker.decoder.positions // 2),
            minimum=1,
            maximum=config.talker.decoder.positions,
            doc="The most frames of speech, 12.5 a second; speech cut short ends as 'length'.",
        ),
    )


def _speech(config: QwenOmniConfig) -> tuple[Parameter, ...]:
    voices = tuple(config.talker.codec.speakers)
    return (
        Parameter(
            name="voice",
            kind="str",
            default=_VOICE if _VOICE in voices else voices[0],
            choices=voices,
            doc="Who speaks.",
        ),
        *_sampler("talker_", "the first code of each frame", temperature=0.9, top_k=50, top_p=1.0),
        _penalty("talker_repetition_penalty", 1.05, "first codes of the speech so far"),
        *_sampler("predictor_", "the other codes of each frame", temperature=1.0, top_k=50, top_p=0.8),
        Parameter(
            name="vocoder",
            kind="str",
            default="exact",
            choices=("exact", "compat"),
            doc="exact: as decoding the whole speech at once; compat: with the gaps of the reference's chunks.",
        ),
    )


def _media() -> tuple[Parameter, ...]:
    return (
        Parameter(
            name="audio_padding",
            kind="str",
            default="own",
            choices=("own", "compat"),
            doc="own: a sound is encoded as if it were alone; compat: padded to the request's longest, as the "
            "reference does.",
        ),
        Parameter(
            name="use_audio_in_video",
            kind="bool",
            default=False,
            doc="Hear the sound track of a video together with its frames.",
        ),
        Parameter(
            name="fps",
            kind="float",
            default=1.0,
            exclusive_minimum=0,
            maximum=60,
            doc="Frames of a video that are looked at, per second.",
        ),
    )


def _sampler(prefix: str, what: str, *, temperature: float, top_k: int, top_p: float) -> tuple[Parameter, ...]:
    return (
        Parameter(
            name=f"{prefix}temperature",
            kind="float",
            default=temperature,
            minimum=0,
            maximum=2,
            doc=f"Randomness of {what}; 0 always takes the likeliest.",
        ),
        Parameter(
            name=f"{prefix}top_k",
            kind="int",
            default=top_k,
            minimum=0,
            doc=f"Sample {what} from so many of the likeliest; 0 is off.",
        ),
        Parameter(
            name=f"{prefix}top_p",
            kind="float",
            default=top_p,
            exclusive_minimum=0,
            maximum=1,
            doc=f"Sample {what} from the likeliest whose probabilities sum to this; 1 is off.",
        ),
    )


def _penalty(name: str, default: float, what: str) -> Parameter:
    return Parameter(
        name=name,
        kind="float",
        default=default,
        exclusive_minimum=0,
        maximum=10,
        doc=f"Above 1, {what} become less likely; 1 is off.",
    )
