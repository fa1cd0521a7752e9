"""Causal convolutions that go on where they stopped, and what the decoder is built of with them.

All work on `[batch, channels, time]`. Behind the beginning of a stream lie zeros, except for a transposed convolution:
it makes what lies between two inputs, so that it starts with the second.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.nn.linear import Linear
from mstar_core.nn.transformer import LayerNorm
from mstar_qwen_omni.speech.code2wav.memory import Memory

KERNEL = 7
DILATIONS = (1, 3, 9)
"""Of the residual units, whose layout is that of SoundStream (Zeghidour et al., 2021, arXiv:2107.03312)."""

_NORM_EPS = 1e-6
"""Of the ConvNeXt blocks (reference: `Qwen3OmniMoeConvNeXtBlock`)."""

_SNAKE_FLOOR = 1e-9
"""Keeps the magnitude finite (reference: `Qwen3OmniMoeSnakeBeta`)."""


class CausalConv(nn.Module):
    """A convolution over a time step and those before it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.dilation = dilation
        self.groups = groups
        self.reach = (kernel - 1) * dilation
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, kernel), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(outputs), requires_grad=False)

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        """`[batch, outputs, time]`."""
        if self.reach:
            x = memory.padded(x, self.reach)
        return F.conv1d(x, self.weight, self.bias, dilation=self.dilation, groups=self.groups)


class Stretch(nn.Module):
    """A transposed convolution: `rate` time steps for one.

    With a kernel of twice the rate it makes the steps between each input and the next: one input's worth less.
    """

    def __init__(self, inputs: int, outputs: int, rate: int, kernel: int) -> None:
        super().__init__()
        self.rate = rate
        self.trim = kernel - rate
        self.weight = nn.Parameter(torch.empty(inputs, outputs, kernel), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(outputs), requires_grad=False)

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        """`[batch, outputs, time]`."""
        if self.trim:
            x = memory.behind(x, self.trim // self.rate)
        stretched = F.conv_transpose1d(x, self.weight, self.bias, stride=self.rate)
        return stretched[..., self.trim : stretched.shape[-1] - self.trim]


class Snake(nn.Module):
    """`x + sin(e^alpha x)^2 / e^beta` per channel (Ziyin et al., 2020, arXiv:2006.08195; two parameters as in BigVGAN,
    Lee et al., 2022, arXiv:2206.04658)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels), requires_grad=False)
        self.beta = nn.Parameter(torch.empty(channels), requires_grad=False)

    def prepare(self) -> None:
        """Turn the published logarithms into a rate and an inverse magnitude: once, after the weights are there."""
        self.alpha = nn.Parameter(self.alpha.exp(), requires_grad=False)
        self.beta = nn.Parameter(1.0 / (self.beta.exp() + _SNAKE_FLOOR), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[batch, channels, time]` to the same."""
        wave = (x * self.alpha[:, None]).sin_().square_()
        return torch.addcmul(x, wave, self.beta[:, None])


class ResidualUnit(nn.Module):
    """`x + pointwise(snake(conv(snake(x))))`."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.snake = Snake(channels)
        self.conv = CausalConv(channels, channels, KERNEL, dilation=dilation)
        self.second_snake = Snake(channels)
        self.pointwise = CausalConv(channels, channels, 1)

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        """`[batch, channels, time]` to the same."""
        hidden = self.second_snake(self.conv(self.snake(x), memory))
        output: torch.Tensor = self.pointwise(hidden, memory).add_(x)
        return output


class SnakeStage(nn.Module):
    """Stretch by a rate, halve the channels, then residual units of growing dilation."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        self.snake = Snake(channels)
        self.stretch = Stretch(channels, channels // 2, rate, 2 * rate)
        self.units = nn.ModuleList(ResidualUnit(channels // 2, dilation) for dilation in DILATIONS)

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        """`[batch, channels, time]` to `[batch, channels / 2, time * rate]`."""
        x = self.stretch(self.snake(x), memory)
        for unit in self.units:
            x = unit(x, memory)
        return x


class ConvNextStage(nn.Module):
    """Stretch by a ratio, then a ConvNeXt block (Liu et al., 2022, arXiv:2201.03545)."""

    def __init__(self, channels: int, ratio: int) -> None:
        super().__init__()
        self.stretch = Stretch(channels, channels, ratio, ratio)
        self.depthwise = CausalConv(channels, channels, KERNEL, groups=channels)
        self.norm = LayerNorm(channels, _NORM_EPS)
        self.up = Linear(channels, [4 * channels], bias=True)
        self.down = Linear(4 * channels, [channels], bias=True)
        self.scale = nn.Parameter(torch.empty(channels), requires_grad=False)

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        """`[batch, channels, time]` to `[batch, channels, time * ratio]`."""
        x = self.stretch(x, memory)
        rows = self.norm(self.depthwise(x, memory).mT).flatten(0, 1)  # [batch * time, channels]
        branch: torch.Tensor = self.down(self.up.gelu(rows)).mul_(self.scale)
        return x + branch.view(x.shape[0], x.shape[2], -1).mT
