"""Makes the bundled checkpoint `tiny`: the published layout at a size that runs anywhere, with random weights.

    python plugins/mstar-qwen-omni/scripts/make_tiny.py

Needs transformers. The result is the same on every run.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

TARGET = Path(__file__).parents[1] / "src/mstar_qwen_omni/checkpoints/tiny"

POSITIONS = 4096
HIDDEN, SPEECH = 48, 32
"""Widths of the thinker, and of talker, code predictor and code2wav."""
CODES, GROUPS = 64, 16

ROLES = {"system": 256, "user": 257, "assistant": 258}
SPECIAL = {
    "<|endoftext|>": 300,
    "<|im_start|>": 301,
    "<|im_end|>": 302,
    "<|vision_start|>": 309,
    "<|vision_end|>": 310,
    "<|image_pad|>": 312,
    "<|video_pad|>": 313,
    "<|audio_start|>": 326,
    "<|audio_end|>": 327,
    "<tts_pad>": 328,
    "<tts_text_bos>": 329,
    "<tts_text_eod>": 330,
    "<|audio_pad|>": 332,
}
"""As far apart from 300 as the published ids are from 151643."""
VOCABULARY = 352

SPREAD = 0.12
"""Deviation of the random weights: large enough that every input shows in the outputs."""
LOUDNESS = 0.2
"""Of the last layer of code2wav, so that the noise is not unpleasant."""
WRITTEN = (*map(chr, range(ord("!"), ord("~") + 1)), "\u0120", "<|im_end|>")
"""What the thinker writes: printable ASCII characters, the space (as byte-level vocabularies write it), the end."""

TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'audio' %}{{- '<|audio_start|><|audio_pad|><|audio_end|>' }}"
    "{%- elif part.type == 'video' %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def attention(sections: tuple[int, int, int]) -> dict[str, Any]:
    """What the thinker's and the talker's decoders have in common; rotary settings in the published spelling."""
    return {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 2 * sum(sections),
        "attention_bias": False,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "rope_scaling": {"interleaved": True, "mrope_section": list(sections), "rope_type": "default"},
        "hidden_act": "silu",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "initializer_range": SPREAD,
        "tie_word_embeddings": False,
    }


def thinker() -> dict[str, Any]:
    """`thinker_config`."""
    text = attention((4, 2, 2)) | {
        "model_type": "qwen3_omni_moe_text",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 0,
        "use_qk_norm": True,
    }
    audio = {
        "model_type": "qwen3_omni_moe_audio_encoder",
        "num_mel_bins": 128,
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "downsample_hidden_size": 8,
        "output_dim": HIDDEN,
        "n_window": 50,
        "n_window_infer": 200,
        "conv_chunksize": 500,
        "max_source_positions": 1500,
        "activation_function": "gelu",
        "scale_embedding": False,
        "initializer_range": SPREAD,
    }
    vision = {
        "model_type": "qwen3_omni_moe_vision_encoder",
        "depth": 3,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 48,
        "in_channels": 3,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
        "out_hidden_size": HIDDEN,
        "hidden_act": "gelu_pytorch_tanh",
        "initializer_range": SPREAD,
    }
    return {
        "model_type": "qwen3_omni_moe_thinker",
        "text_config": text,
        "audio_config": audio,
        "vision_config": vision,
        "audio_token_id": SPECIAL["<|audio_pad|>"],
        "audio_start_token_id": SPECIAL["<|audio_start|>"],
        "audio_end_token_id": SPECIAL["<|audio_end|>"],
        "image_token_id": SPECIAL["<|image_pad|>"],
        "video_token_id": SPECIAL["<|video_pad|>"],
        "vision_start_token_id": SPECIAL["<|vision_start|>"],
        "vision_end_token_id": SPECIAL["<|vision_end|>"],
        "user_token_id": ROLES["user"],
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
        "initializer_range": SPREAD,
    }


def talker() -> dict[str, Any]:
    """`talker_config`; ids beyond the codes are as far from them as the published ones."""
    text = attention((4, 2, 2)) | {
        "model_type": "qwen3_omni_moe_talker_text",
        "vocab_size": CODES + 1024,
        "hidden_size": SPEECH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 24,
    }
    predictor = {
        "model_type": "qwen3_omni_moe_talker_code_predictor",
        "vocab_size": CODES,
        "hidden_size": SPEECH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_code_groups": GROUPS,
        "layer_types": ["full_attention", "full_attention"],
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "rope_scaling": None,
        "hidden_act": "silu",
        "initializer_range": SPREAD,
    }
    return {
        "text_config": text,
        "code_predictor_config": predictor,
        "num_code_groups": GROUPS,
        "thinker_hidden_size": HIDDEN,
        "accept_hidden_layer": 3,
        "codec_pad_id": CODES + 100,
        "codec_bos_id": CODES + 101,
        "codec_eos_token_id": CODES + 102,
        "codec_nothink_id": CODES + 107,
        "codec_think_bos_id": CODES + 108,
        "codec_think_eos_id": CODES + 109,
        "speaker_id": {"chelsie": CODES + 253, "ethan": CODES + 254, "aiden": CODES + 255},
        "audio_token_id": SPECIAL["<|audio_pad|>"],
        "audio_start_token_id": SPECIAL["<|audio_start|>"],
        "image_token_id": SPECIAL["<|image_pad|>"],
        "video_token_id": SPECIAL["<|video_pad|>"],
        "vision_start_token_id": SPECIAL["<|vision_start|>"],
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
        "spatial_merge_size": 2,
        "initializer_range": SPREAD,
    }


def code2wav() -> dict[str, Any]:
    """`code2wav_config`: the published rates, so that a frame is 1920 samples."""
    return {
        "codebook_size": CODES,
        "num_quantizers": GROUPS,
        "hidden_size": SPEECH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "sliding_window": 8,
        "decoder_dim": 48,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "max_position_embeddings": 8000,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "layer_scale_initial_scale": 0.01,
        "hidden_act": "silu",
        "initializer_range": SPREAD,
    }


def configuration() -> dict[str, Any]:
    """`config.json`."""
    return {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "dtype": "float32",
        "enable_audio_output": True,
        "thinker_config": thinker(),
        "talker_config": talker(),
        "code2wav_config": code2wav(),
        "im_start_token_id": SPECIAL["<|im_start|>"],
        "im_end_token_id": SPECIAL["<|im_end|>"],
        "system_token_id": ROLES["system"],
        "user_token_id": ROLES["user"],
        "assistant_token_id": ROLES["assistant"],
        "tts_pad_token_id": SPECIAL["<tts_pad>"],
        "tts_bos_token_id": SPECIAL["<tts_text_bos>"],
        "tts_eos_token_id": SPECIAL["<tts_text_eod>"],
    }


def preprocessor() -> dict[str, Any]:
    """`preprocessor_config.json`, with the published values."""
    return {
        "processor_class": "Qwen3OmniMoeProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 128,
        "hop_length": 160,
        "n_fft": 400,
        "sampling_rate": 16000,
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


def vocabulary() -> dict[str, int]:
    """The letters of the bytes, the role words, the special tokens, and names for all ids between."""
    words = {letter: id for id, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))} | ROLES | SPECIAL
    taken = set(words.values())
    return words | {f"<|unused_{id}|>": id for id in range(VOCABULARY) if id not in taken}


def tokenizer() -> Tokenizer:
    """One token for each byte, and the others as added ones."""
    made = Tokenizer(models.BPE(vocabulary(), []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(word, normalized=False) for word in ROLES])
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    return made


def weights(config: Qwen3OmniMoeConfig) -> dict[str, torch.Tensor]:
    """All tensors by their published names, in bfloat16, which halves the file and leaves the values as they are."""
    torch.manual_seed(0)
    model = Qwen3OmniMoeForConditionalGeneration(config)
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        tensors = load_file(Path(directory) / "model.safetensors")
    words = vocabulary()
    written = [words[word] for word in WRITTEN]
    head = torch.zeros_like(tensors["thinker.lm_head.weight"])
    head[written] = torch.randn(len(written), head.shape[1])
    tensors["thinker.lm_head.weight"] = head
    for name in ("weight", "bias"):
        tensors[f"code2wav.decoder.6.conv.{name}"] *= LOUDNESS
    return {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}


def main() -> None:
    """Write everything."""
    TARGET.mkdir(parents=True, exist_ok=True)
    values = configuration()
    files = {
        "config.json": values,
        "generation_config.json": {"eos_token_id": SPECIAL["<|im_end|>"], "pad_token_id": SPECIAL["<|endoftext|>"]},
        "preprocessor_config.json": preprocessor(),
        "chat_template.json": {"chat_template": TEMPLATE},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": POSITIONS,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    }
    for name, content in files.items():
        (TARGET / name).write_text(json.dumps(content, indent=1) + "\n")
    tokenizer().save(str(TARGET / "tokenizer.json"))
    save_file(weights(Qwen3OmniMoeConfig.from_dict(values)), TARGET / "model.safetensors")


if __name__ == "__main__":
    main()
