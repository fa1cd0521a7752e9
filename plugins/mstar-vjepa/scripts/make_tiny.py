"""Makes the bundled checkpoints `tiny`: the real layouts at sizes that run anywhere, with random weights.

    python plugins/mstar-vjepa/scripts/make_tiny.py

Needs transformers. The result is the same on every run.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import VJEPA2Config, VJEPA2ForVideoClassification

TARGET = Path(__file__).parents[1] / "src/mstar_vjepa/checkpoints"
LABELS = ("lifting something", "pushing something", "opening something", "dropping something")
CLIP_SIDE, WORLD_SIDE, PATCH = 64, 96, 16
ENCODER = {"embed_dim": 48, "depth": 2, "num_heads": 2, "mlp_hidden": 192}
PREDICTOR = {"predictor_embed_dim": 48, "depth": 2, "num_heads": 2, "mlp_hidden": 192}
SCALE = 0.1
"""Deviation of the random weights: large enough that every input shows in the outputs."""


def make_clip() -> None:
    """`clip-tiny/` in Hugging Face's layout."""
    config = VJEPA2Config(
        crop_size=CLIP_SIDE,
        frames_per_clip=8,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        pred_hidden_size=36,
        pred_num_hidden_layers=2,
        pred_num_attention_heads=2,
        pred_num_mask_tokens=2,
        pred_zero_init_mask_tokens=False,
        num_pooler_layers=1,
        initializer_range=SCALE,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    model = VJEPA2ForVideoClassification(config)
    model.save_pretrained(TARGET / "clip-tiny")


def block(name: str, hidden: int, mlp: int) -> dict[str, torch.Tensor]:
    """One block's tensors by Meta's names."""
    return {
        **norm(f"{name}.norm1", hidden),
        **linear(f"{name}.attn.qkv", hidden, 3 * hidden),
        **linear(f"{name}.attn.proj", hidden, hidden),
        **norm(f"{name}.norm2", hidden),
        **linear(f"{name}.mlp.fc1", hidden, mlp),
        **linear(f"{name}.mlp.fc2", mlp, hidden),
    }


def linear(name: str, inputs: int, outputs: int) -> dict[str, torch.Tensor]:
    """A linear layer's tensors."""
    return {f"{name}.weight": torch.randn(outputs, inputs) * SCALE, f"{name}.bias": torch.randn(outputs) * SCALE}


def norm(name: str, width: int) -> dict[str, torch.Tensor]:
    """A norm's tensors."""
    return {f"{name}.weight": torch.ones(width), f"{name}.bias": torch.zeros(width)}


def make_encoder() -> dict[str, torch.Tensor]:
    """The frame encoder's tensors."""
    width = ENCODER["embed_dim"]
    kernel = torch.randn(width, 3, 2, PATCH, PATCH) * SCALE / PATCH
    tensors = {"patch_embed.proj.weight": kernel, "patch_embed.proj.bias": torch.zeros(width)} | norm("norm", width)
    for layer in range(ENCODER["depth"]):
        tensors |= block(f"blocks.{layer}", width, ENCODER["mlp_hidden"])
    return tensors


def make_predictor() -> dict[str, torch.Tensor]:
    """The predictor's tensors; those of the camera are in every file."""
    width, hidden = ENCODER["embed_dim"], PREDICTOR["predictor_embed_dim"]
    tensors = linear("predictor_embed", width, hidden) | linear("predictor_proj", hidden, width)
    tensors |= norm("predictor_norm", hidden)
    for name, numbers in (("action", 7), ("state", 7), ("extrinsics", 6)):
        tensors |= linear(f"{name}_encoder", numbers, hidden)
    for layer in range(PREDICTOR["depth"]):
        tensors |= block(f"predictor_blocks.{layer}", hidden, PREDICTOR["mlp_hidden"])
    return tensors


def make_world() -> None:
    """`world-tiny/` in Meta's layout, with the configuration that the published file does without."""
    directory = TARGET / "world-tiny"
    directory.mkdir(parents=True, exist_ok=True)
    norms = {"layer_norm_eps": 1e-6}
    pictures = {
        "img_height": WORLD_SIDE,
        "img_width": WORLD_SIDE,
        "patch_size": PATCH,
        "tubelet_size": 2,
        "in_chans": 3,
    }
    motion = {"action_embed_dim": 7, "state_dim": 7, "use_extrinsics": False}
    config = {
        "model_type": "vjepa2_ac",
        "encoder": pictures | ENCODER | norms,
        "predictor": motion | PREDICTOR | norms,
        "world_model": {"normalize_reps": True, "rep_layer_norm_eps": 1e-5},
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    parts = {"encoder": make_encoder(), "predictor": make_predictor()}
    wrapped = {part: {f"module.{name}": each for name, each in tensors.items()} for part, tensors in parts.items()}
    torch.save({**wrapped, "opt": None, "scaler": None, "epoch": 0}, directory / "vjepa2-ac-tiny.pt")


def main() -> None:
    """Write both."""
    torch.manual_seed(0)
    make_clip()
    make_world()


if __name__ == "__main__":
    main()
