"""Makes the bundled checkpoint `tiny`: the published layout at sizes that run anywhere, with random weights.

    python plugins/mstar-bagel/scripts/make_tiny.py

Needs mstar-bagel and tokenizers. The result is the same on every run. The weights are stored in bfloat16 and computed
in float32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mstar_bagel.config import BagelConfig
from mstar_bagel.vision.vae import Decoder, Encoder
from mstar_bagel.vision.weights import autoencoder_names
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TARGET = Path(__file__).parents[1] / "src/mstar_bagel/checkpoints/tiny"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")
BYTES = 256
TIME_WIDTH = 256
EMBEDDED = 0.2
"""Deviation of the embeddings: little beside what the layers add, so that texts do more than repeat a letter."""
LLM = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 264,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": BYTES,
    "eos_token_id": BYTES + 2,
}
VIT = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "image_size": 112,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "patch_size": 14,
}
BAGEL = {
    "architectures": ["BagelForConditionalGeneration"],
    "model_type": "bagel",
    "visual_gen": True,
    "visual_und": True,
    "latent_patch_size": 2,
    "max_latent_size": 8,
    "vit_max_num_patch_per_side": 8,
    "connector_act": "gelu_pytorch_tanh",
    "interpolate_pos": False,
    "vae_config": {
        "ch": 32,
        "ch_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "z_channels": 16,
        "scale_factor": 0.3611,
        "shift_factor": 0.1159,
    },
    "vae_transform": {"max_image_size": 128, "min_image_size": 64, "image_stride": 16},
    "vit_transform": {"max_image_size": 112, "min_image_size": 56, "image_stride": 14},
    "dtype": "float32",
}

Tensors = dict[str, torch.Tensor]
Config = Mapping[str, Any]


def make_tokenizer() -> Tokenizer:
    """Bytes and the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in SPECIAL])
    return tokenizer


def linear(name: str, inputs: int, outputs: int, *, bias: bool = True) -> Tensors:
    """A layer that keeps the deviation of its input."""
    made = {f"{name}.weight": torch.randn(outputs, inputs) * inputs**-0.5}
    return made | {f"{name}.bias": torch.randn(outputs) * 0.1} if bias else made


def norm(name: str, width: int, *, bias: bool = False) -> Tensors:
    """A norm's tensors, as unlike the identity as trained ones are."""
    made = {f"{name}.weight": 1 + 0.1 * torch.randn(width)}
    return made | {f"{name}.bias": torch.randn(width) * 0.1} if bias else made


def sines(side: int, width: int) -> torch.Tensor:
    """The 2-D table `[side * side, width]`: columns in the first half, rows in the second, sines before cosines."""
    frequencies = 10000.0 ** -(torch.arange(width // 4) / (width // 4))
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    angles = [place.flatten()[:, None] * frequencies for place in (column, row)]  # [side * side, width / 4] each
    return torch.cat([turned for angle in angles for turned in (angle.sin(), angle.cos())], dim=1)


def make_layer(llm: Config, name: str, expert: str) -> Tensors:
    """One layer of one expert; `expert` is the suffix of its names."""
    hidden, mlp = llm["hidden_size"], llm["intermediate_size"]
    head = hidden // llm["num_attention_heads"]
    kv = head * llm["num_key_value_heads"]
    attention = f"{name}.self_attn"
    return {
        **norm(f"{name}.input_layernorm{expert}", hidden),
        **linear(f"{attention}.q_proj{expert}", hidden, hidden),
        **linear(f"{attention}.k_proj{expert}", hidden, kv),
        **linear(f"{attention}.v_proj{expert}", hidden, kv),
        **linear(f"{attention}.o_proj{expert}", hidden, hidden, bias=False),
        **norm(f"{attention}.q_norm{expert}", head),
        **norm(f"{attention}.k_norm{expert}", head),
        **norm(f"{name}.post_attention_layernorm{expert}", hidden),
        **linear(f"{name}.mlp{expert}.gate_proj", hidden, mlp, bias=False),
        **linear(f"{name}.mlp{expert}.up_proj", hidden, mlp, bias=False),
        **linear(f"{name}.mlp{expert}.down_proj", mlp, hidden, bias=False),
    }


def make_llm(llm: Config, writable: Sequence[int]) -> Tensors:
    """The language model; ids that are not `writable` have a logit of zero, so that its text can be read."""
    hidden, vocab = llm["hidden_size"], llm["vocab_size"]
    head = torch.zeros(vocab, hidden)
    head[list(writable)] = torch.randn(len(writable), hidden) * 2 * hidden**-0.5
    tensors = {
        "language_model.model.embed_tokens.weight": torch.randn(vocab, hidden) * EMBEDDED,
        "language_model.lm_head.weight": head,
    }
    for expert in ("", "_moe_gen"):
        tensors |= norm(f"language_model.model.norm{expert}", hidden)
        for layer in range(llm["num_hidden_layers"]):
            tensors |= make_layer(llm, f"language_model.model.layers.{layer}", expert)
    return tensors


def make_vit(vit: Config, side: int, width: int) -> Tensors:
    """The vision transformer, of one layer less than its file says, and the connector to the language model's width."""
    hidden, mlp = vit["hidden_size"], vit["intermediate_size"]
    root = "vit_model.vision_model"
    tensors = {
        f"{root}.embeddings.position_embedding.weight": torch.randn(side * side, hidden) * 0.5,
        **linear(f"{root}.embeddings.patch_embedding", 3 * vit["patch_size"] ** 2, hidden),
        **norm(f"{root}.post_layernorm", hidden, bias=True),
        **linear("connector.fc1", hidden, width),
        **linear("connector.fc2", width, width),
        "vit_pos_embed.pos_embed": sines(side, width),
    }
    for layer in range(vit["num_hidden_layers"] - 1):
        name = f"{root}.encoder.layers.{layer}"
        for each in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors |= linear(f"{name}.self_attn.{each}", hidden, hidden)
        tensors |= linear(f"{name}.mlp.fc1", hidden, mlp) | linear(f"{name}.mlp.fc2", mlp, hidden)
        tensors |= norm(f"{name}.layer_norm1", hidden, bias=True) | norm(f"{name}.layer_norm2", hidden, bias=True)
    return tensors


def make_latent_projections(bagel: Config, width: int) -> Tensors:
    """Latent tokens and times to the language model's width, and back."""
    token = bagel["vae_config"]["z_channels"] * bagel["latent_patch_size"] ** 2
    return {
        **linear("vae2llm", token, width),
        **linear("llm2vae", width, token),
        **linear("time_embedder.mlp.0", TIME_WIDTH, width),
        **linear("time_embedder.mlp.2", width, width),
        "latent_pos_embed.pos_embed": sines(bagel["max_latent_size"], width),
    }


def make_autoencoder(config: BagelConfig) -> Tensors:
    """Both halves, by their published names."""
    tensors: Tensors = {}
    for half, module in (("encoder", Encoder(config.vae)), ("decoder", Decoder(config.vae))):
        pieces = autoencoder_names(half)(module)
        for name, value in module.named_parameters():
            parts = value.detach().chunk(len(pieces[name]))
            tensors |= {piece.name: part for piece, part in zip(pieces[name], parts, strict=True)}
    return tensors


def write_json(path: Path, values: object) -> None:
    """One of the checkpoint's files."""
    path.write_text(json.dumps(values, indent=2) + "\n")


def write_checkpoint(target: Path, llm: Config, vit: Config, bagel: Config, dtype: torch.dtype) -> None:
    """All files of a checkpoint, its weights stored in `dtype`; `llm` has room for the vocabulary of `LLM`."""
    torch.manual_seed(0)
    target.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(target / "tokenizer.json"))
    write_json(target / "tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer", "eos_token": SPECIAL[2]})
    write_json(target / "config.json", bagel)
    write_json(target / "llm_config.json", llm)
    write_json(target / "vit_config.json", vit)
    letters = [tokenizer.token_to_id(symbol) for symbol in "abcdefghijklmnopqrstuvwxyz\u0120"]
    width = llm["hidden_size"]
    language = make_llm(llm, [*letters, BYTES + 2])
    vision = make_vit(vit, bagel["vit_max_num_patch_per_side"], width)
    files = {
        "ema.safetensors": language | vision | make_latent_projections(bagel, width),
        "ae.safetensors": make_autoencoder(BagelConfig.read(target)),
    }
    for file, tensors in files.items():
        save_file({name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}, target / file)
    places = {name: file for file, tensors in files.items() for name in sorted(tensors)}
    write_json(target / "model.safetensors.index.json", {"weight_map": places})


def main() -> None:
    """Write the bundled checkpoint."""
    write_checkpoint(TARGET, LLM, VIT, BAGEL, torch.bfloat16)


if __name__ == "__main__":
    main()
