"""Which tensors of Meta's `.pt` layout make up the parts of V-JEPA 2-AC.

The file is a dictionary with `encoder`, `target_encoder` and `predictor`, whose names bear the prefixes of the
training's wrappers (facebookresearch/vjepa2, `src/hub/backbones.py`, which takes `encoder`).
"""

from __future__ import annotations

from pathlib import Path

from mstar_core.engines.torch_archive import ArchiveWeights, read_archive
from mstar_core.engines.weights import Piece
from mstar_vjepa.world.config import archive

Names = dict[str, list[Piece]]

_WRAPPERS = ("module.", "backbone.")


def weights_of(checkpoint: Path, section: str) -> ArchiveWeights:
    """The tensors of `encoder` or `predictor` by their bare names. Raises `CheckpointError`."""
    path = archive(checkpoint)
    if section == "encoder" and "encoder" not in read_archive(path):
        section = "target_encoder"
    return ArchiveWeights.open_section(path, section, bare)


def bare(name: str) -> str:
    """A tensor's name without the training's wrappers."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def encoder_names(layers: int) -> Names:
    """The encoder's."""
    names = _affine("patches", "patch_embed.proj") | _affine("norm", "norm")
    for layer in range(layers):
        names |= _block(f"blocks.{layer}", f"blocks.{layer}")
    return names


def predictor_names(layers: int, *, extrinsics: bool) -> Names:
    """The predictor's; weights for the camera are in every file."""
    names = _affine("embed", "predictor_embed")
    names |= _affine("norm", "predictor_norm") | _affine("project", "predictor_proj")
    for index, condition in enumerate(("action", "state", "extrinsics")[: 2 + extrinsics]):
        names |= _affine(f"conditions.{index}", f"{condition}_encoder")
    for layer in range(layers):
        names |= _block(f"blocks.{layer}", f"predictor_blocks.{layer}")
    return names


def _block(ours: str, theirs: str) -> Names:
    pairs = {
        "attention_norm": "norm1",
        "attention.qkv": "attn.qkv",
        "attention.out": "attn.proj",
        "mlp_norm": "norm2",
        "mlp.up": "mlp.fc1",
        "mlp.down": "mlp.fc2",
    }
    names: Names = {}
    for mine, published in pairs.items():
        names |= _affine(f"{ours}.{mine}", f"{theirs}.{published}")
    return names


def _affine(ours: str, theirs: str) -> Names:
    return {f"{ours}.{each}": [Piece(f"{theirs}.{each}")] for each in ("weight", "bias")}
