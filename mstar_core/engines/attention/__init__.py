"""Attention backends over paged keys and values."""

from __future__ import annotations

from typing import Any

import torch

from mstar_core._resolve import resolve
from mstar_core.engines.attention.base import AttentionBackend, KVLayout
from mstar_core.engines.kernels import attends

CORE_BACKENDS = {
    "compiled": "mstar_core.engines.attention.compiled_backend:CompiledAttention",
    "torch": "mstar_core.engines.attention.torch_backend:TorchAttention",
    "flashinfer": "mstar_core.engines.attention.flashinfer_backend:FlashInferAttention",
}


def default_backend(layout: KVLayout, device: torch.device, dtype: torch.dtype, *, compiled: bool = False) -> str:
    """FlashInfer on CUDA devices; elsewhere PyTorch alone, or with compiled kernels where steps are compiled and the
    kernels take such heads."""
    if device.type == "cuda":
        return "flashinfer"
    return "compiled" if compiled and device.type == "cpu" and attends(dtype, layout.head_dim) else "torch"


def make_backend(
    target: str, layout: KVLayout, *, pages: int, page_size: int, device: torch.device, dtype: torch.dtype
) -> AttentionBackend:
    """The backend of that name, or at that import path (`module:attribute`), with an empty pool of `pages` pages."""
    backend: Any = resolve(CORE_BACKENDS.get(target, target), purpose=f"attention backend {target!r}")
    made: AttentionBackend = backend(layout, pages=pages, page_size=page_size, device=device, dtype=dtype)
    return made
