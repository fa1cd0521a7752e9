"""From velocities to the next latents: times, classifier-free guidance, renormalisation, Euler.

As ByteDance-Seed/Bagel does it (`modeling/bagel/bagel.py`, `generate_image`), but each request by itself: the norms of
the reference mix the pictures of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_TINY = 1e-8
"""Keeps a norm of 0 from dividing."""


def times(steps: int, shift: float) -> torch.Tensor:
    """`steps` times from 1 (noise) to 0 (picture), float32 `[steps]`; a shift above 1 stays longer near the noise.

    Between them lie `steps - 1` steps.
    """
    even = torch.linspace(1, 0, steps)
    return shift * even / (1 + (shift - 1) * even)


def guided(time: float, params: Mapping[str, Any]) -> bool:
    """Whether a step at `time` is guided: the interval is open below. Compared in float32, as the reference does."""
    start, end = np.float32(params["interval_start"]), np.float32(params["interval_end"])
    return bool(params["text_scale"] > 1 and start < np.float32(time) <= end)


def guide(main: torch.Tensor, text: torch.Tensor, image: torch.Tensor, params: Mapping[str, Any]) -> torch.Tensor:
    """The guided velocity of one picture from those with everything, without the text and without the pictures, all
    float32 `[tokens, latent width]`."""
    image_scale, least = params["img_scale"], params["renorm_min"]
    towards_text = text + params["text_scale"] * (main - text)
    if params["renorm"] == "text_channel":
        towards_text = _renormalised(towards_text, main, least, dim=-1)
    full: torch.Tensor = image + image_scale * (towards_text - image) if image_scale > 1 else towards_text
    match params["renorm"]:
        case "global":
            return _renormalised(full, main, least, dim=None)
        case "channel":
            return _renormalised(full, main, least, dim=-1)
    return full


def _renormalised(velocity: torch.Tensor, like: torch.Tensor, least: float, dim: int | None) -> torch.Tensor:
    """Scaled down to the norm of `like`, over everything or token by token, but to no less than a share `least`."""
    wanted, found = (torch.linalg.vector_norm(each, dim=dim, keepdim=True) for each in (like, velocity))
    scaled: torch.Tensor = velocity * (wanted / (found + _TINY)).clamp(least, 1.0)
    return scaled
