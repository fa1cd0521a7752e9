"""Published SNAC tensors, read, checked and freed of weight normalisation.

Names follow the hub's checkpoint. A weight-normalised layer stores a direction `v` and a length `g`
(Salimans and Kingma, 2016): weight = g * v / |v|, the norm over all dimensions but the first. The pair is called
`parametrizations.weight.original1` and `original0`, or in older files `weight_v` and `weight_g`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from mstar_orpheus.codec.config import DILATIONS, KERNEL, SnacConfig

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
"""File names looked for, in this order."""

_LENGTH_SUFFIXES = (".parametrizations.weight.original0", ".weight_g")
_DIRECTION_SUFFIXES = (".parametrizations.weight.original1", ".weight_v")


class SnacWeightsError(ValueError):
    """A checkpoint whose tensors are not those of the configuration; the message lists every difference."""


def read_weights(directory: Path | str, config: SnacConfig) -> dict[str, Tensor]:
    """The decoder's and the codebooks' tensors in float32, as `name.weight`, `name.bias`, `name.alpha`.

    Tensors of the encoder are skipped. Raises `SnacWeightsError` if there is no file, or if tensors are missing,
    unknown or of another shape.
    """
    path = _weight_file(Path(directory))
    weights = fold_weight_norm(_read_tensors(path))
    _check(weights, expected_shapes(config), path)
    return weights


def fold_weight_norm(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors in float32 with every direction and length pair replaced by its weight."""
    lengths = _with_suffix(tensors, _LENGTH_SUFFIXES)
    directions = _with_suffix(tensors, _DIRECTION_SUFFIXES)
    pairs = lengths.keys() & directions.keys()
    weights = {f"{layer}.weight": _normalised(lengths[layer], directions[layer]) for layer in pairs}
    folded = {name for name in tensors if _layer(name) in pairs}
    return weights | {name: tensor.float() for name, tensor in tensors.items() if name not in folded}


def expected_shapes(config: SnacConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `read_weights` gives for this configuration."""
    shapes = _quantizer_shapes(config)
    shapes |= _convolution("decoder.model.0", config.latent_dim, 1, KERNEL)
    shapes |= _convolution("decoder.model.1", config.decoder_dim, config.latent_dim, 1)
    channels = config.decoder_dim
    for index, rate in enumerate(config.decoder_rates, start=2):
        shapes |= _block_shapes(f"decoder.model.{index}.block", channels, rate)
        channels //= 2
    last = 2 + len(config.decoder_rates)
    shapes[f"decoder.model.{last}.alpha"] = (1, channels, 1)
    return shapes | _convolution(f"decoder.model.{last + 1}", 1, channels, KERNEL)


def _weight_file(directory: Path) -> Path:
    for name in WEIGHT_FILES:
        if (directory / name).is_file():
            return directory / name
    raise SnacWeightsError(f"{directory} has no weights: {' or '.join(WEIGHT_FILES)} was expected")


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if _is_decoders(name)}  # noqa: SIM118
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    return {name: tensor for name, tensor in tensors.items() if _is_decoders(name)}


def _is_decoders(name: str) -> bool:
    """Whether decoding needs the tensor; the encoder and the quantizers' input projections are for encoding."""
    return not name.startswith("encoder.") and ".in_proj." not in name


def _with_suffix(tensors: dict[str, Tensor], suffixes: tuple[str, ...]) -> dict[str, Tensor]:
    return {_layer(name): tensor for name, tensor in tensors.items() if name.endswith(suffixes)}


def _layer(name: str) -> str:
    """The layer a length or direction belongs to; any other name as it is."""
    for suffix in _LENGTH_SUFFIXES + _DIRECTION_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _normalised(length: Tensor, direction: Tensor) -> Tensor:
    direction = direction.float()
    norm = direction.flatten(1).norm(dim=1).view(-1, *[1] * (direction.dim() - 1))
    weight: Tensor = direction * (length.float() / norm)
    return weight


def _check(weights: dict[str, Tensor], expected: dict[str, tuple[int, ...]], path: Path) -> None:
    wrong = [f"missing {name} {list(expected[name])}" for name in sorted(expected.keys() - weights.keys())]
    wrong += [f"unknown {name} {list(weights[name].shape)}" for name in sorted(weights.keys() - expected.keys())]
    wrong += [
        f"{name} is {list(weights[name].shape)}, {list(shape)} was expected"
        for name, shape in sorted(expected.items())
        if name in weights and tuple(weights[name].shape) != shape
    ]
    if wrong:
        listed = "\n  ".join(wrong)
        raise SnacWeightsError(f"{path} does not fit its config.json:\n  {listed}")


def _convolution(name: str, out_channels: int, in_channels: int, kernel: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out_channels, in_channels, kernel), f"{name}.bias": (out_channels,)}


def _quantizer_shapes(config: SnacConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for level in range(len(config.vq_strides)):
        name = f"quantizer.quantizers.{level}"
        shapes[f"{name}.codebook.weight"] = (config.codebook_size, config.codebook_dim)
        shapes |= _convolution(f"{name}.out_proj", config.latent_dim, config.codebook_dim, 1)
    return shapes


def _block_shapes(name: str, channels: int, rate: int) -> dict[str, tuple[int, ...]]:
    """A decoder block that halves `channels`: 0 snake, 1 upsampling, 2 noise, 3 and on residual units."""
    half = channels // 2
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}.0.alpha": (1, channels, 1),
        f"{name}.1.weight": (channels, half, 2 * rate),  # transposed: input channels first
        f"{name}.1.bias": (half,),
        f"{name}.2.linear.weight": (half, half, 1),
    }
    for index in range(3, 3 + len(DILATIONS)):
        unit = f"{name}.{index}.block"
        shapes |= {f"{unit}.0.alpha": (1, half, 1), f"{unit}.2.alpha": (1, half, 1)}
        shapes |= _convolution(f"{unit}.1", half, 1, KERNEL)
        shapes |= _convolution(f"{unit}.3", half, half, 1)
    return shapes
