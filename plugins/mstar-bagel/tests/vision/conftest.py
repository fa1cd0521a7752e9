"""The vision nodes of a checkpoint, and calls of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mstar_bagel.vision.nodes import LatentDecoder, LatentEncoder, VisionEncoder

from mstar_core.engines.base import Call, NodeRequest

NODES = {"vit": VisionEncoder, "vae_encoder": LatentEncoder, "vae_decoder": LatentDecoder}


@pytest.fixture(scope="session")
def node(context) -> Callable[..., Any]:
    """A node of a checkpoint, loaded once."""
    loaded: dict[tuple[str, str], Any] = {}

    def loading(name: str, directory: Any) -> Any:
        key = (name, str(directory))
        if key not in loaded:
            loaded[key] = NODES[name](context(directory))
        return loaded[key]

    return loading


@pytest.fixture(scope="session")
def call() -> Callable[..., Call]:
    """A call with the given inputs; other keywords are the request's parameters."""

    def calling(inputs: dict[str, Any], *, seed: int = 0, step: int = 0, **params: Any) -> Call:
        request = NodeRequest(key=seed, params={"sample_posterior": True, **params}, seed=seed)
        return Call(request, "walk", {"posterior_noise": None, **inputs}, step)

    return calling


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield
