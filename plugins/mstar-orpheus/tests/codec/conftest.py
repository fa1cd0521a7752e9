"""Small decoders with random weights, and the recorded cases of the codec."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mstar_orpheus.codec.config import SnacConfig
from mstar_orpheus.codec.decoder import SnacDecoder
from mstar_orpheus.codec.weights import expected_shapes
from safetensors.torch import load_file
from torch import Tensor

SMALL = {
    "sampling_rate": 24000,
    "encoder_dim": 1,
    "encoder_rates": [2, 4, 8, 8],
    "decoder_dim": 32,
    "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None,
    "codebook_size": 32,
    "codebook_dim": 4,
    "vq_strides": [4, 2, 1],
    "noise": True,
    "depthwise": True,
}


def random_weights(config: SnacConfig, seed: int = 0) -> dict[str, Tensor]:
    """Weights under which a change anywhere in a window is felt in the samples it can reach."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        fan_in = max(values[0].numel(), 1)
        weights[name] = values.abs() + 0.5 if name.endswith("alpha") else values / fan_in**0.5
    return weights


@pytest.fixture
def small_values() -> dict[str, object]:
    """A `config.json` with the 24 kHz model's rates and strides and few channels."""
    return dict(SMALL)


@pytest.fixture(scope="session")
def make_decoder() -> Callable[..., SnacDecoder]:
    """Builds a random decoder: the small configuration, or one changed by keywords."""

    def make(**changes: object) -> SnacDecoder:
        config = SnacConfig.parse(SMALL | changes)
        return SnacDecoder(config, random_weights(config))

    return make


@pytest.fixture(scope="session")
def small(make_decoder: Callable[..., SnacDecoder]) -> SnacDecoder:
    return make_decoder()


@pytest.fixture(scope="session")
def golden(golden_dir: Path) -> SnacDecoder:
    return SnacDecoder.load(golden_dir / "snac")


@pytest.fixture(scope="session")
def cases(golden_dir: Path) -> dict[str, Tensor]:
    return load_file(golden_dir / "cases.safetensors")


@pytest.fixture(scope="session")
def facts(golden_dir: Path) -> dict[str, dict[str, object]]:
    """What `cases.json` says of each case, and the token ids."""
    recorded = json.loads((golden_dir / "cases.json").read_text())
    return recorded["cases"] | {"token_ids": recorded["token_ids"]}
