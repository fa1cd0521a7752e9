"""The model's configuration, read from a checkpoint's JSON files. Torch-free."""

from mstar_qwen_omni.config.checkpoint import QwenOmniConfig
from mstar_qwen_omni.config.decoders import DecoderConfig, DenseDecoderConfig
from mstar_qwen_omni.config.encoders import AudioConfig, VisionConfig
from mstar_qwen_omni.config.ids import SpecialIds
from mstar_qwen_omni.config.speech import Code2WavConfig, CodecIds, TalkerConfig

__all__ = [
    "AudioConfig",
    "Code2WavConfig",
    "CodecIds",
    "DecoderConfig",
    "DenseDecoderConfig",
    "QwenOmniConfig",
    "SpecialIds",
    "TalkerConfig",
    "VisionConfig",
]
