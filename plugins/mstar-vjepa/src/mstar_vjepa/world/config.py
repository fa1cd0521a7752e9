"""The shape of a V-JEPA 2-AC checkpoint. Torch-free.

The published file has no configuration beside it: a directory without `config.json` is taken for the published size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar_core.checkpoints import read_config
from mstar_core.errors import CheckpointError
from mstar_vjepa.config import CHANNELS, PatchConfig, TowerConfig

ACTION = 7
"""Numbers of an action and of a pose: x, y, z, three Euler angles, gripper."""

CAMERA = 6
"""Numbers of the extrinsics: position and angles of the camera."""

SEARCHED = 4
"""Components of an action that are searched: x, y, z, gripper."""

AXES = ("fixed_x", "fixed_y", "fixed_z", "fixed_gripper")
"""The parameters that fix a component, in the components' order."""

MOST_SLOTS = 1024
"""Our own limit of a history, in frames.

The reference's mask is built for 32 (hub) or 256 (training) and fails beyond; no weight depends on that number, and a
cache needs no mask. Accuracy so far beyond the training's histories is the caller's to judge.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldConfig:
    """Frame encoder and predictor; `latent_eps` is that of the norm without weights between them, None without one."""

    patches: PatchConfig
    encoder: TowerConfig
    predictor: TowerConfig
    extrinsics: bool
    latent_eps: float | None

    @property
    def conditions(self) -> int:
        """Tokens that a frame has beside its patches: action, state, and the camera if the model sees it."""
        return 3 if self.extrinsics else 2

    @property
    def condition_width(self) -> int:
        """Numbers of a frame's action, state and camera together."""
        return 2 * ACTION + (CAMERA if self.extrinsics else 0)

    @property
    def slot(self) -> int:
        """Tokens of a frame in the predictor."""
        return self.conditions + self.patches.tokens

    @classmethod
    def read(cls, checkpoint: Path) -> WorldConfig:
        """Read a checkpoint directory; raises `CheckpointError`."""
        path = checkpoint / "config.json"
        return read_config(path, cls.parse) if path.is_file() else PUBLISHED

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> WorldConfig:
        """From the JSON's values; raises KeyError for what is missing and ValueError for what is not supported."""
        if values["model_type"] != "vjepa2_ac":
            raise ValueError(f"model_type is {values['model_type']!r}, not 'vjepa2_ac'")
        encoder, predictor, world = values["encoder"], values["predictor"], values["world_model"]
        if encoder["in_chans"] != CHANNELS:
            raise ValueError(f"in_chans is {encoder['in_chans']}; pictures have {CHANNELS} channels")
        if (predictor["action_embed_dim"], predictor["state_dim"]) != (ACTION, ACTION):
            raise ValueError(f"actions and states have {ACTION} numbers each")
        return cls(
            patches=PatchConfig(
                height=encoder["img_height"],
                width=encoder["img_width"],
                size=encoder["patch_size"],
                tubelet=encoder["tubelet_size"],
            ),
            encoder=_tower(encoder, "embed_dim"),
            predictor=_tower(predictor, "predictor_embed_dim"),
            extrinsics=predictor["use_extrinsics"],
            latent_eps=world["rep_layer_norm_eps"] if world["normalize_reps"] else None,
        )


PUBLISHED = WorldConfig(
    patches=PatchConfig(height=256, width=256, size=16, tubelet=2),
    encoder=TowerConfig(layers=40, hidden=1408, heads=22, mlp=6144, eps=1e-6),
    predictor=TowerConfig(layers=24, hidden=1024, heads=16, mlp=4096, eps=1e-6),
    extrinsics=False,
    latent_eps=1e-5,
)
"""facebookresearch/vjepa2, hub entry point `vjepa2_ac_vit_giant`."""


def archive(checkpoint: Path) -> Path:
    """The checkpoint's `.pt` file; raises `CheckpointError` when there is none, or more than one."""
    files = sorted(checkpoint.glob("*.pt"))
    if len(files) != 1:
        found = ", ".join(path.name for path in sorted(checkpoint.iterdir())) or "nothing"
        raise CheckpointError(f"{checkpoint}: one .pt file in Meta's layout is needed (found: {found})")
    return files[0]


def _tower(values: Mapping[str, Any], width: str) -> TowerConfig:
    return TowerConfig(
        layers=values["depth"],
        hidden=values[width],
        heads=values["num_heads"],
        mlp=values["mlp_hidden"],
        eps=values["layer_norm_eps"],
    )
