"""The nodes `vit`, `vae_encoder` and `vae_decoder`: pictures to rows and tokens, tokens to pictures.

The ViT takes pictures of one size together, in the dtype of its place. The autoencoder is published, and runs, in
float32, and takes every picture by itself: a picture fills a device, convolutions over several gain nothing (on a CPU
they lose 5 to 10 %) and give other last bits, and whoever waits for the first need not wait for the rest.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from mstar_bagel.config import BagelConfig
from mstar_bagel.vision.latents import pack_latent, posterior_noise, unpack_latent
from mstar_bagel.vision.siglip import VisionTower
from mstar_bagel.vision.vae import Decoder, Encoder
from mstar_bagel.vision.weights import autoencoder_names, channels_last, load_part, vit_names
from mstar_core.engines.base import Call, NodeContext
from mstar_core.engines.stateless import StatelessNode, TensorNode
from mstar_core.nn.linear import pack

_LEVELS = 255.0


class VisionEncoder(TensorNode):
    """Pictures as the ViT sees them to rows of the language model's input."""

    def __init__(self, context: NodeContext) -> None:
        config: BagelConfig = context.config
        self.device, self.dtype = context.device, context.dtype
        self.model = load_part(
            lambda: VisionTower(config.vit, config.llm.hidden),
            context,
            vit_names,
            dtype=context.dtype,
            filled=partial(pack, rows=config.vit.side**2),
        )

    def compute(self, **inputs: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """`picture` uint8 `[pictures, height, width, 3]` to `rows` `[pictures, patches, llm hidden]`."""
        pixels = normalised(inputs["picture"].to(self.device)).to(self.dtype)
        return {"rows": self.model(pixels)}


class _LatentNode(StatelessNode):
    """Half of the autoencoder, one picture at a time."""

    def signature(self, call: Call) -> Hashable:
        """Every request runs by itself."""
        return call.request.key

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """One after the other."""
        return [self.compute(call) for call in calls]

    @abstractmethod
    def compute(self, call: Call) -> Mapping[str, torch.Tensor]:
        """One call's outputs by port."""


class LatentEncoder(_LatentNode):
    """Pictures as the autoencoder sees them to latent tokens.

    The posterior is sampled from the request's seed, or with the noise that the request brings; with
    `sample_posterior` off its mean is taken.
    """

    def __init__(self, context: NodeContext) -> None:
        config: BagelConfig = context.config
        self.device, self.patch = context.device, config.latent_patch
        self.model = load_part(
            lambda: Encoder(config.vae),
            context,
            autoencoder_names("encoder"),
            dtype=torch.float32,
            filled=channels_last,
        )

    def compute(self, call: Call) -> Mapping[str, torch.Tensor]:
        """`picture` uint8 `[height, width, 3]` to `tokens` float32 `[rows * columns, latent width]`, and their `grid`,
        int64 [2]: rows, columns."""
        picture = torch.as_tensor(call.inputs["picture"]).to(self.device)
        mean, log_variance = self.model(normalised(picture)[None].permute(0, 3, 1, 2))
        if call.request.params["sample_posterior"]:
            mean = mean + (0.5 * log_variance).exp() * self._noise(call, mean.shape)
        grid = [side // self.patch for side in mean.shape[2:]]
        return {"tokens": pack_latent(self.model.latent(mean), self.patch)[0], "grid": torch.tensor(grid)}

    def _noise(self, call: Call, shape: torch.Size) -> torch.Tensor:
        given = call.inputs["posterior_noise"]
        if given is None:
            return posterior_noise(call.request.seed, call.step, shape).to(self.device)
        return torch.as_tensor(given).to(self.device).view(shape)


class LatentDecoder(_LatentNode):
    """Latent tokens to pictures of the request's `height` and `width`."""

    def __init__(self, context: NodeContext) -> None:
        config: BagelConfig = context.config
        self.device = context.device
        self.patch, self.token_side = config.latent_patch, config.pixels_per_token
        self.model = load_part(
            lambda: Decoder(config.vae),
            context,
            autoencoder_names("decoder"),
            dtype=torch.float32,
            filled=channels_last,
        )

    def compute(self, call: Call) -> Mapping[str, torch.Tensor]:
        """`tokens` `[rows * columns, latent width]` to `picture` uint8 `[height, width, 3]`."""
        rows = call.request.params["height"] // self.token_side
        tokens = torch.as_tensor(call.inputs["tokens"]).to(self.device, torch.float32)
        return {"picture": levels(self.model(unpack_latent(tokens[None], rows, self.patch)))[0]}


def normalised(pictures: torch.Tensor) -> torch.Tensor:
    """Levels, uint8, to float32 values in -1 to 1; same shape."""
    return (pictures / _LEVELS - 0.5) / 0.5


def levels(pixels: torch.Tensor) -> torch.Tensor:
    """`[pictures, 3, height, width]` in -1 to 1 to uint8 `[pictures, height, width, 3]`, truncated as the reference
    does."""
    scaled = (pixels * 0.5 + 0.5).clamp(0, 1) * _LEVELS
    return scaled.permute(0, 2, 3, 1).to(torch.uint8)
