"""The shape of a BAGEL checkpoint: `config.json`, `llm_config.json`, `vit_config.json`, `tokenizer.json`. Torch-free.

The published checkpoint leaves much to the reference's code: sizes of the VAE and of the tables, the limits of picture
sizes, and that the vision transformer has one layer less than its file says. Those are the constants here. A checkpoint
of other sizes says so in its `config.json`: by `vae_transform`, `vit_transform`, `vae_config`, `max_latent_size`,
`vit_max_num_patch_per_side`, `latent_patch_size` and `dtype`, at its root or in a block named `golden`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mstar_core.checkpoints import read_config

_Config = TypeVar("_Config")

CHANNELS = 3
"""Red, green, blue."""

_MAX_PIXELS = 14 * 14 * 9 * 1024
"""Of a resized picture (ByteDance-Seed/Bagel, `data/transforms.py`)."""

_SPECIAL = {
    "bos": ("<|im_start|>", "bos_token_id"),
    "eos": ("<|im_end|>", "eos_token_id"),
    "start_of_image": ("<|vision_start|>", "start_of_image"),
    "end_of_image": ("<|vision_end|>", "end_of_image"),
}
"""Each special id: its token's content, and its key in `special_token_ids` of a checkpoint without a tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmConfig:
    """The language model: a Qwen2 decoder with q/k norms, whose layers exist twice (once for latent tokens)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    vocab: int
    positions: int
    eps: float
    theta: float

    @property
    def head_dim(self) -> int:
        """Channels per head."""
        return self.hidden // self.heads

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> LlmConfig:
        """From `llm_config.json`; its bos and eos are not those of BAGEL, and tying is off whatever it says."""
        if values.get("hidden_act", "silu") != "silu" or values.get("use_sliding_window"):
            raise ValueError("only silu without a sliding window is supported")
        return cls(
            layers=values["num_hidden_layers"],
            hidden=values["hidden_size"],
            heads=values["num_attention_heads"],
            kv_heads=values["num_key_value_heads"],
            mlp=values["intermediate_size"],
            vocab=values["vocab_size"],
            positions=values["max_position_embeddings"],
            eps=values["rms_norm_eps"],
            theta=values["rope_theta"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VitConfig:
    """The vision transformer (SigLIP) that reads pictures; `layers` is how many the weights have.

    `side` is the side of its position table, in patches of `patch` by `patch` pixels.
    """

    layers: int
    hidden: int
    heads: int
    mlp: int
    patch: int
    side: int
    eps: float

    @property
    def head_dim(self) -> int:
        """Channels per head."""
        return self.hidden // self.heads

    @property
    def patch_values(self) -> int:
        """Values of one patch, in the order (row, column, channel)."""
        return self.patch * self.patch * CHANNELS

    @classmethod
    def parse(cls, values: Mapping[str, Any], side: int) -> VitConfig:
        """From `vit_config.json`, which counts the last layer that the reference drops."""
        return cls(
            layers=values["num_hidden_layers"] - 1,
            hidden=values["hidden_size"],
            heads=values["num_attention_heads"],
            mlp=values["intermediate_size"],
            patch=values["patch_size"],
            side=side,
            eps=values.get("layer_norm_eps", 1e-6),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VaeConfig:
    """The FLUX autoencoder, by default in its published sizes (ByteDance-Seed/Bagel, `modeling/autoencoder.py`)."""

    width: int = 128
    widths: tuple[int, ...] = (1, 2, 4, 4)
    blocks: int = 2
    channels: int = 16
    scale: float = 0.3611
    shift: float = 0.1159

    @property
    def downsample(self) -> int:
        """Pixels of a picture's side to one latent value: every width but the last halves it."""
        return int(2 ** (len(self.widths) - 1))

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> VaeConfig:
        """From `vae_config` of a checkpoint that states its sizes."""
        return cls(
            width=values["ch"],
            widths=tuple(values["ch_mult"]),
            blocks=values["num_res_blocks"],
            channels=values["z_channels"],
            scale=values["scale_factor"],
            shift=values["shift_factor"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a resize rule keeps: longest and shortest side in pixels, a multiple of `stride`, at most `max_pixels`."""

    longest: int
    shortest: int
    stride: int
    max_pixels: int = _MAX_PIXELS

    @classmethod
    def parse(cls, values: Mapping[str, Any], max_pixels: int) -> Limits:
        """From `vae_transform` or `vit_transform` of a checkpoint that states them."""
        return cls(
            longest=values["max_image_size"],
            shortest=values["min_image_size"],
            stride=values["image_stride"],
            max_pixels=max_pixels,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transforms:
    """The resize rules by who looks at the picture; by default the published checkpoint's."""

    vae: Limits = Limits(longest=1024, shortest=512, stride=16)
    vit: Limits = Limits(longest=980, shortest=224, stride=14)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids that enclose texts (`bos`, `eos`) and pictures."""

    bos: int
    eos: int
    start_of_image: int
    end_of_image: int

    def ends(self, id: int) -> bool:
        """Whether the model has said all with this id: what it says after another bos is no part of its text."""
        return id in (self.bos, self.eos)


@dataclass(frozen=True, slots=True, kw_only=True)
class BagelConfig:
    """A whole checkpoint.

    A latent token is a square of `latent_patch` by `latent_patch` latent values; the table of their positions has a
    side of `latent_side` tokens. `dtype` is that of the published weights; the VAE's are float32 in any case.
    """

    llm: LlmConfig
    vit: VitConfig
    vae: VaeConfig
    transforms: Transforms
    ids: SpecialIds
    latent_patch: int = 2
    latent_side: int = 64
    dtype: str = "bfloat16"

    @property
    def pixels_per_token(self) -> int:
        """Pixels of a picture's side to one latent token: sizes of generated pictures are its multiples."""
        return self.vae.downsample * self.latent_patch

    @property
    def latent_width(self) -> int:
        """Values of one latent token, in the order (row, column, channel)."""
        return self.latent_patch * self.latent_patch * self.vae.channels

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the latent tokens of a picture, whose sides in pixels are multiples of a token's."""
        return height // self.pixels_per_token, width // self.pixels_per_token

    @property
    def longest_side(self) -> int:
        """The longest side of a generated picture in pixels: the resize rule's, and no longer than the table."""
        return min(self.transforms.vae.longest, self.latent_side * self.pixels_per_token)

    @classmethod
    def read(cls, checkpoint: Path) -> BagelConfig:
        """Read a checkpoint directory; raises `CheckpointError` that names the file and what is missing or wrong."""
        root = _own(read_config(checkpoint / "config.json", dict))
        sizes = read_config(checkpoint / "config.json", lambda _: _sizes(root))
        side = sizes.pop("vit_side", 70)
        return cls(
            llm=read_config(checkpoint / "llm_config.json", LlmConfig.parse),
            vit=read_config(checkpoint / "vit_config.json", lambda values: VitConfig.parse(values, side)),
            ids=_special_ids(checkpoint, root),
            **sizes,
        )


def _own(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The root's values, and above them those of the block that holds resolved ones."""
    return {**values, **values.get("golden", {})}


def _sizes(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint of other sizes than the published one states; nothing for the published one.

    The published file's own numbers are not looked at: the reference overrides them.
    """
    if "vae_transform" not in values:
        return {"vae": VaeConfig(), "transforms": Transforms()}
    most = values.get("transform_max_pixels", _MAX_PIXELS)
    return {
        "vae": VaeConfig.parse(values["vae_config"]),
        "transforms": Transforms(
            vae=Limits.parse(values["vae_transform"], most), vit=Limits.parse(values["vit_transform"], most)
        ),
        "latent_patch": values["latent_patch_size"],
        "latent_side": values["max_latent_size"],
        "vit_side": values["vit_max_num_patch_per_side"],
        "dtype": values.get("dtype", "float32"),
    }


def _special_ids(checkpoint: Path, root: Mapping[str, Any]) -> SpecialIds:
    """From the tokenizer's added tokens by name; from `config.json` where there is no tokenizer."""
    path = checkpoint / "tokenizer.json"
    if not path.is_file():
        return read_config(checkpoint / "config.json", lambda _: _given_ids(root))
    return read_config(path, _tokenizer_ids)


def _given_ids(root: Mapping[str, Any]) -> SpecialIds:
    given = root["special_token_ids"]
    return SpecialIds(**{name: given[key] for name, (_, key) in _SPECIAL.items()})


def _tokenizer_ids(values: Mapping[str, Any]) -> SpecialIds:
    added = {token["content"]: token["id"] for token in values["added_tokens"]}
    missing = [content for content, _ in _SPECIAL.values() if content not in added]
    if missing:
        raise ValueError(f"is no BAGEL tokenizer: among its added tokens is no {', no '.join(missing)}")
    return SpecialIds(**{name: added[content] for name, (content, _) in _SPECIAL.items()})
