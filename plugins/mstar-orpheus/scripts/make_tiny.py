"""Makes the bundled checkpoint `tiny`: the real model's layout at a size that runs anywhere, with random weights.

    python plugins/mstar-orpheus/scripts/make_tiny.py

Needs transformers, tokenizers and snac. The result is the same on every run.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from snac import SNAC
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

TARGET = Path(__file__).parents[1] / "src/mstar_orpheus/checkpoints/tiny"
CODEBOOK = 64
FIRST_SPECIAL, CUSTOM = 256, 320
CUSTOM_TOKENS = 10 + 7 * CODEBOOK + 2
POSITIONS = 1024
LOUDNESS = 0.2
"""Of the codec's last layer, so that the noise is not unpleasant."""


def make_tokenizer() -> Tokenizer:
    """Bytes, 64 special tokens of which the model uses three, and the custom tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    named = {0: "<|begin_of_text|>", 1: "<|end_of_text|>", 9: "<|eot_id|>"}
    special = [named.get(index, f"<|reserved_special_token_{index}|>") for index in range(CUSTOM - FIRST_SPECIAL)]
    tokenizer.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in special])
    tokenizer.add_tokens([AddedToken(f"<custom_token_{index}>") for index in range(CUSTOM_TOKENS)])
    return tokenizer


def main() -> None:
    """Write `llm/` and `snac/`."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=CUSTOM + CUSTOM_TOKENS,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=POSITIONS,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        tie_word_embeddings=True,
        bos_token_id=FIRST_SPECIAL,
        eos_token_id=CUSTOM + 2,
    )
    LlamaForCausalLM(config).save_pretrained(TARGET / "llm")
    make_tokenizer().save(str(TARGET / "llm" / "tokenizer.json"))
    codec = {
        "sampling_rate": 24000,
        "encoder_dim": 8,
        "encoder_rates": [2, 4, 8, 8],
        "decoder_dim": 64,
        "decoder_rates": [8, 8, 4, 2],
        "attn_window_size": None,
        "codebook_size": CODEBOOK,
        "codebook_dim": 8,
        "vq_strides": [4, 2, 1],
        "noise": True,
        "depthwise": True,
    }
    (TARGET / "snac").mkdir(parents=True, exist_ok=True)
    (TARGET / "snac" / "config.json").write_text(json.dumps(codec, indent=2) + "\n")
    state = {name: tensor.contiguous() for name, tensor in SNAC(**codec).state_dict().items()}
    state["decoder.model.7.parametrizations.weight.original0"] *= LOUDNESS
    save_file(state, TARGET / "snac" / "model.safetensors")


if __name__ == "__main__":
    main()
