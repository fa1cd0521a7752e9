"""Gated activations: two projections of one input, side by side, become one."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from mstar_core.engines.kernels import current_kernels


def gated_silu() -> Callable[[torch.Tensor], torch.Tensor]:
    """`silu_multiply`, or the compiled kernel that does the same where a node is built to use kernels."""
    kernels = current_kernels()
    return silu_multiply if kernels is None else kernels.silu_multiply


def silu_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, `[rows, width]`, from `[rows, 2 * width]` (SwiGLU: Shazeer, 2020, arXiv:2002.05202)."""
    gate, up = gate_up.chunk(2, dim=-1)  # [rows, width] each
    return F.silu(gate) * up
