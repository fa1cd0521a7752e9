"""The autoencoder of FLUX.1, which BAGEL paints with: pictures to latents of an eighth of their sides, and back.

Modules bear the published names (black-forest-labs/flux, `src/flux/modules/autoencoder.py`), except that the three
projections of attention are one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from mstar_bagel.config import CHANNELS, VaeConfig

_GROUPS, _EPS = 32, 1e-6
"""Of every group norm."""


class Encoder(nn.Module):
    """Pictures to the moments of their posterior."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        widths = [config.width * each for each in config.widths]
        befores = [widths[0], *widths[:-1]]
        last = len(widths) - 1
        self.conv_in = _convolution(CHANNELS, widths[0])
        self.down = nn.ModuleList(
            _Shrinking(before, after, config.blocks, shrinks=level < last)
            for level, (before, after) in enumerate(zip(befores, widths, strict=True))
        )
        self.mid = _Middle(widths[-1])
        self.norm_out = _norm(widths[-1])
        self.conv_out = _convolution(widths[-1], 2 * config.channels)
        self.scale, self.shift = config.scale, config.shift

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and log variance, `[pictures, channels, height / 8, width / 8]` each, of `[pictures, 3, height, width]`
        in -1 to 1."""
        x = self.conv_in(pixels)
        for level in self.down:
            x = level(x)
        moments = self.conv_out(F.silu(self.norm_out(self.mid(x))))
        mean, log_variance = moments.chunk(2, dim=1)
        return mean, log_variance

    def latent(self, sample: torch.Tensor) -> torch.Tensor:
        """A sample of the posterior, or its mean, as the language model knows latents; same shape."""
        return self.scale * (sample - self.shift)


class Decoder(nn.Module):
    """Latents to pictures."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        widths = [config.width * each for each in config.widths]
        befores = [*widths[1:], widths[-1]]
        self.conv_in = _convolution(config.channels, widths[-1])
        self.mid = _Middle(widths[-1])
        self.up = nn.ModuleList(
            _Growing(before, after, config.blocks + 1, grows=level > 0)
            for level, (before, after) in enumerate(zip(befores, widths, strict=True))
        )
        self.norm_out = _norm(widths[0])
        self.conv_out = _convolution(widths[0], CHANNELS)
        self.scale, self.shift = config.scale, config.shift

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        """Pixels of about -1 to 1, `[pictures, 3, height, width]`, of the language model's latents."""
        x = self.mid(self.conv_in(latent / self.scale + self.shift))
        for level in reversed(self.up):
            x = level(x)
        pixels: torch.Tensor = self.conv_out(F.silu(self.norm_out(x)))
        return pixels


class _Shrinking(nn.Module):
    """Residual blocks, then half the resolution."""

    def __init__(self, before: int, after: int, blocks: int, *, shrinks: bool) -> None:
        super().__init__()
        self.block = _residuals(before, after, blocks)
        self.downsample = _Downsample(after) if shrinks else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shrunk: torch.Tensor = self.downsample(self.block(x))
        return shrunk


class _Growing(nn.Module):
    """Residual blocks, then twice the resolution."""

    def __init__(self, before: int, after: int, blocks: int, *, grows: bool) -> None:
        super().__init__()
        self.block = _residuals(before, after, blocks)
        self.upsample = _Upsample(after) if grows else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grown: torch.Tensor = self.upsample(self.block(x))
        return grown


class _Residual(nn.Module):
    """Two convolutions, each behind a norm and an activation, beside a shortcut."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1 = _norm(before)
        self.conv1 = _convolution(before, after)
        self.norm2 = _norm(after)
        self.conv2 = _convolution(after, after)
        self.nin_shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = self.conv2(F.silu(self.norm2(hidden)))
        output: torch.Tensor = self.nin_shortcut(x) + hidden
        return output


class _Attention(nn.Module):
    """One head over all places of a picture."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _norm(width)
        self.qkv = nn.Conv2d(width, 3 * width, 1)
        self.proj_out = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected = self.qkv(self.norm(x)).flatten(2).transpose(1, 2)  # [pictures, places, 3 * width]
        queries, keys, values = projected[:, None].chunk(3, dim=-1)  # [pictures, 1, places, width] each
        attended = F.scaled_dot_product_attention(queries, keys, values)[:, 0]  # [pictures, places, width]
        output: torch.Tensor = x + self.proj_out(attended.transpose(1, 2).reshape(x.shape))
        return output


class _Middle(nn.Module):
    """What lies at the lowest resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block_1 = _Residual(width, width)
        self.attn_1 = _Attention(width)
        self.block_2 = _Residual(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.block_2(self.attn_1(self.block_1(x)))
        return output


class _Downsample(nn.Module):
    """Half the resolution; the published weights expect one row and column of zeros, below and at the right only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.conv(F.pad(x, (0, 1, 0, 1)))
        return output


class _Upsample(nn.Module):
    """Every value four times, then a convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = _convolution(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return output


def _residuals(before: int, after: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(*(_Residual(after if block else before, after) for block in range(blocks)))


def _convolution(before: int, after: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, padding=1)


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS, width, _EPS)
