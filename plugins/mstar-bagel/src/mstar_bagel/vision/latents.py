"""Latents as tokens of the language model, and how a posterior is sampled."""

from __future__ import annotations

import torch

from mstar_core.engines.random_numbers import stream_id


def pack_latent(latent: torch.Tensor, patch: int) -> torch.Tensor:
    """`[pictures, channels, patch * rows, patch * columns] -> [pictures, rows * columns, patch * patch * channels]`.

    Tokens lie row by row; inside a token the order is row, column, channel.
    """
    pictures, channels, height, width = latent.shape
    cut = latent.reshape(pictures, channels, height // patch, patch, width // patch, patch)
    # [pictures, rows, columns, row in token, column in token, channels]
    return cut.permute(0, 2, 4, 3, 5, 1).reshape(pictures, -1, patch * patch * channels)


def unpack_latent(tokens: torch.Tensor, rows: int, patch: int) -> torch.Tensor:
    """What `pack_latent` packed, tokens in `rows` rows, to a latent."""
    cut = tokens.reshape(tokens.shape[0], rows, tokens.shape[1] // rows, patch, patch, -1)
    # [pictures, channels, rows, row in token, columns, column in token]
    spread = cut.permute(0, 5, 1, 3, 2, 4)
    return spread.flatten(4, 5).flatten(2, 3)  # [pictures, channels, patch * rows, patch * columns]


def posterior_noise(seed: int, picture: int, shape: torch.Size) -> torch.Tensor:
    """Standard normal float32 numbers for the n-th picture of a request, drawn on the CPU.

    The same on every device, and unrelated to the noise that a picture is made from, though both have one seed.
    """
    generator = torch.Generator()
    generator.manual_seed(stream_id("bagel", "posterior", str(seed), str(picture)))
    return torch.randn(shape, generator=generator)
