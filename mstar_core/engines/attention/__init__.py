"""Attention backends over paged keys and values."""

from __future__ import annotations

from typing import Any

import torch

from mstar_core._resolve import resolve
from mstar_core.engines.attention.base import AttentionBackend, KVLayout

CORE_BACKENDS = {
    "torch": "mstar_core.engines.attention.torch_backend:TorchAttention",
    "flashinfer": "mstar_core.engines.attention.flashinfer_backend:FlashInferAttention",
}


def default_backend(device: torch.device) -> str:
    """FlashInfer on CUDA devices, PyTorch alone elsewhere."""
    return "flashinfer" if device.type == "cuda" else "torch"


def make_backend(
    target: str, layout: KVLayout, *, pages: int, page_size: int, device: torch.device, dtype: torch.dtype
) -> AttentionBackend:
    """The backend of that name, or at that import path (`module:attribute`), with an empty pool of `pages` pages."""
    backend: Any = resolve(CORE_BACKENDS.get(target, target), purpose=f"attention backend {target!r}")
    made: AttentionBackend = backend(layout, pages=pages, page_size=page_size, device=device, dtype=dtype)
    return made
