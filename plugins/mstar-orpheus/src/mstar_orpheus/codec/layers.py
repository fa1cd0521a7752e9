"""The decoder's layers, arranged for inference on CPU and CUDA.

Activations are time-major, [batch, time, channels]: a 1x1 convolution is one matrix product, and so is a transposed
convolution of kernel 2r and rate r, whose r output rows are made of two neighbouring input rows.

Snake (Ziyin, Hartwig, Ueda, 2020) is x + sin²(αx)/α with one α per channel. With u = αx it reads
α snake(x) = u + sin²(u), so every layer whose output goes into a snake is folded to give u itself, and the layer after
it to take α snake(x): no activation multiplies by α at run time. "Scaled" below means multiplied by the next snake's α.

On a CPU, layers of many rows work in tiles that stay in the core's own cache, one batch row at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional

from mstar_orpheus.codec.config import DILATIONS, KERNEL
from mstar_orpheus.codec.reach import BlockRows, Rows, upsampling_padding

Weights = Mapping[str, Tensor]

_TILE_ELEMENTS = 131072
"""Elements of a CPU tile: 512 KiB in float32, so that a tile and its few temporaries fit in 2 MiB of L2. Measured:
half of it costs 3 %, an eighth 30 %, and no tiles 8 % at 8 frames and 40 % at 64."""

_SMALLEST_ALPHA = 1e-6
"""A snake of smaller |α| takes this one: x + sin²(αx)/α is then x to within 1e-6 x², and u = αx can be undone."""


def snake_scale(alpha: Tensor) -> Tensor:
    """The α of each channel, [channels], kept away from zero."""
    alpha = alpha.flatten()
    smallest = torch.full_like(alpha, _SMALLEST_ALPHA).copysign(alpha)
    return torch.where(alpha.abs() < _SMALLEST_ALPHA, smallest, alpha)


def snake(scaled: Tensor) -> Tensor:
    """u + sin²(u)."""
    sine = torch.sin(scaled)
    return torch.addcmul(scaled, sine, sine)


def snake_(scaled: Tensor) -> Tensor:
    """u + sin²(u), in place."""
    sine = torch.sin(scaled)
    return scaled.addcmul_(sine, sine)


def depthwise(inputs: Tensor, taps: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """Depthwise convolution without padding, one multiply-add per tap. `taps` is [kernel, channels]."""
    rows = inputs.shape[1] - (taps.shape[0] - 1) * dilation
    first, *others = taps.unbind()
    outputs = torch.addcmul(bias, inputs[:, :rows], first)
    for start, tap in enumerate(others, start=1):
        outputs.addcmul_(inputs.narrow(1, start * dilation, rows), tap)
    return outputs


def take(values: Tensor, have: Rows, want: Rows) -> Tensor:
    """The rows `want` of `values`, which holds the rows `have`; zeros where there are none."""
    inside = values[:, max(want.start - have.start, 0) : want.stop - have.start]
    before, after = max(have.start - want.start, 0), max(want.stop - have.stop, 0)
    return functional.pad(inside, (0, 0, before, after)) if before or after else inside


def tiles(rows: Rows, channels: int, device: torch.device) -> Iterator[Rows]:
    """`rows` in tiles for the CPU's cache; whole on any other device."""
    step = max(_TILE_ELEMENTS // channels, 1) if device.type == "cpu" else len(rows)
    for start in range(rows.start, rows.stop, step):
        yield Rows(start, min(start + step, rows.stop))


class Stem(nn.Module):
    """The first two convolutions: depthwise over the latents, then 1x1 to the decoder's width; scaled."""

    taps: Tensor
    bias: Tensor
    weight: Tensor
    out_bias: Tensor

    def __init__(self, weights: Weights, name: str, out_scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("taps", weights[f"{name}.0.weight"][:, 0].T.contiguous())  # [kernel, latent_dim]
        self.register_buffer("bias", weights[f"{name}.0.bias"])
        self.register_buffer("weight", weights[f"{name}.1.weight"][..., 0] * out_scale[:, None])
        self.register_buffer("out_bias", weights[f"{name}.1.bias"] * out_scale)

    def forward(self, latents: Tensor, have: Rows, want: Rows) -> Tensor:
        """Latents [batch, time, latent_dim] of the rows `have` -> [batch, time, decoder_dim] of `want`."""
        window = take(latents, have, want.grow(KERNEL // 2))
        return functional.linear(depthwise(window, self.taps, self.bias, 1), self.weight, self.out_bias)


class Upsampling(nn.Module):
    """Snake, transposed convolution, then noise: x + n * linear(x), n one number per time step. Scaled in and out."""

    weight: Tensor
    bias: Tensor
    noise_weight: Tensor

    def __init__(self, weights: Weights, name: str, rate: int, out_scale: Tensor) -> None:
        super().__init__()
        self.rate = rate
        in_scale = snake_scale(weights[f"{name}.0.alpha"])
        kernel = weights[f"{name}.1.weight"] / in_scale[:, None, None] * out_scale[None, :, None]  # [in, out, 2 rate]
        pair = torch.cat([kernel[..., rate:], kernel[..., :rate]])  # [2 in, out, rate]: row q - 1, row q
        self.register_buffer("weight", pair.permute(2, 1, 0).flatten(0, 1).contiguous())  # [rate * out, 2 in]
        self.register_buffer("bias", (weights[f"{name}.1.bias"] * out_scale).repeat(rate))
        linear = weights[f"{name}.2.linear.weight"][..., 0] * out_scale[:, None] / out_scale  # [out, in]
        self.register_buffer("noise_weight", linear.T.contiguous())

    def forward(self, scaled: Tensor, have: Rows, want: Rows, noise: Tensor | None) -> Tensor:
        """[batch, time, in] of the rows `have` -> [batch, time * rate, out] of `want`; `noise` is [batch, want]."""
        padding = upsampling_padding(self.rate)
        first, last = (want.start + padding) // self.rate, (want.stop - 1 + padding) // self.rate
        active = snake(take(scaled, have, Rows(first - 1, last + 1)))
        pairs = torch.cat([active[:, :-1], active[:, 1:]], dim=-1)  # [batch, time, 2 in]
        phases = functional.linear(pairs, self.weight, self.bias)  # [batch, time, rate * out]
        made = Rows(first * self.rate - padding, (last + 1) * self.rate - padding)
        upsampled = take(phases.view(phases.shape[0], -1, phases.shape[2] // self.rate), made, want)
        if noise is not None:
            self._add_noise(upsampled, noise)
        return upsampled

    def _add_noise(self, upsampled: Tensor, noise: Tensor) -> None:
        for tile in tiles(Rows(0, upsampled.shape[1]), upsampled.shape[2], upsampled.device):
            part = upsampled[:, tile.start : tile.stop]
            part.addcmul_(part @ self.noise_weight, noise[:, tile.start : tile.stop, None])


class ResidualUnit(nn.Module):
    """x + pointwise(snake(depthwise(snake(x)))), scaled in and out, so that the skip is multiplied by a ratio."""

    taps: Tensor
    tap_bias: Tensor
    weight: Tensor
    bias: Tensor
    skip: Tensor

    def __init__(self, weights: Weights, name: str, dilation: int, out_scale: Tensor) -> None:
        super().__init__()
        self.dilation = dilation
        in_scale = snake_scale(weights[f"{name}.0.alpha"])
        middle = snake_scale(weights[f"{name}.2.alpha"])
        taps = weights[f"{name}.1.weight"][:, 0] * (middle / in_scale)[:, None]
        self.register_buffer("taps", taps.T.contiguous())  # [kernel, channels]
        self.register_buffer("tap_bias", weights[f"{name}.1.bias"] * middle)
        pointwise = weights[f"{name}.3.weight"][..., 0] * out_scale[:, None] / middle  # [out, in]
        self.register_buffer("weight", pointwise.T.contiguous())
        self.register_buffer("bias", weights[f"{name}.3.bias"] * out_scale)
        self.register_buffer("skip", out_scale / in_scale)

    def forward(self, scaled: Tensor, have: Rows, want: Rows) -> Tensor:
        """[batch, time, channels] of the rows `have` -> the same of `want`."""
        batch, channels = scaled.shape[0], scaled.shape[2]
        outputs = scaled.new_empty(batch, len(want), channels)
        for tile in tiles(want, channels, scaled.device):
            made = outputs[:, tile.start - want.start : tile.stop - want.start]
            self._run(take(scaled, have, tile.grow(self.dilation * (KERNEL // 2))), made)
        return outputs

    def _run(self, window: Tensor, outputs: Tensor) -> None:
        """Fills `outputs`, whose rows lie in the middle of `window`."""
        channels, reach = window.shape[2], self.dilation * (KERNEL // 2)
        hidden = snake_(depthwise(snake(window), self.taps, self.tap_bias, self.dilation))
        torch.addcmul(self.bias, window[:, reach : reach + outputs.shape[1]], self.skip, out=outputs)
        outputs.view(-1, channels).addmm_(hidden.view(-1, channels), self.weight)


class DecoderBlock(nn.Module):
    """Upsampling, then residual units of growing dilation; halves the channels."""

    def __init__(self, weights: Weights, name: str, rate: int, out_scale: Tensor) -> None:
        super().__init__()
        units = [f"{name}.{index}.block" for index in range(3, 3 + len(DILATIONS))]
        scales = [snake_scale(weights[f"{unit}.0.alpha"]) for unit in units]
        self.upsampling = Upsampling(weights, name, rate, scales[0])
        self.units = nn.ModuleList(
            ResidualUnit(weights, unit, dilation, scale)
            for unit, dilation, scale in zip(units, DILATIONS, [*scales[1:], out_scale], strict=True)
        )

    def forward(self, scaled: Tensor, rows: BlockRows, noise: Tensor | None) -> Tensor:
        """[batch, time, channels] of `rows.inputs` -> [batch, time * rate, channels / 2] of `rows.units[-1]`."""
        scaled, have = self.upsampling(scaled, rows.inputs, rows.upsampled, noise), rows.upsampled
        for unit, want in zip(self.units, rows.units, strict=True):
            scaled, have = unit(scaled, have, want), want
        return scaled


class Head(nn.Module):
    """Snake, convolution to one channel, tanh."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weights: Weights, name: str) -> None:
        super().__init__()
        scale = snake_scale(weights[f"{name}.alpha"])
        prefix, _, index = name.rpartition(".")
        last = f"{prefix}.{int(index) + 1}"
        self.register_buffer(
            "weight", (weights[f"{last}.weight"][0] / scale[:, None]).contiguous()
        )  # [channels, kernel]
        self.register_buffer("bias", weights[f"{last}.bias"])

    def forward(self, scaled: Tensor, have: Rows, want: Rows) -> Tensor:
        """[batch, time, channels] of the rows `have` -> samples [batch, time] of `want`, between -1 and 1."""
        parts = [
            self._convolve(take(scaled, have, tile.grow(KERNEL // 2)))
            for tile in tiles(want, scaled.shape[2], scaled.device)
        ]
        return torch.cat(parts, dim=1).tanh_()

    def _convolve(self, window: Tensor) -> Tensor:
        products = snake(window) @ self.weight  # [batch, time + kernel - 1, kernel]
        rows = window.shape[1] - KERNEL + 1
        shifted = [products[:, index : index + rows, index] for index in range(KERNEL)]
        return reduce(torch.add, shifted, self.bias)
