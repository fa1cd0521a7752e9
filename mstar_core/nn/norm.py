"""Root mean square normalisation (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.kernels import current_kernels


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis, the mean in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width), requires_grad=False)
        self.eps = eps
        self._kernels = current_kernels()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[..., width]`, in the dtype of `x`."""
        if self._kernels is not None:
            return self._kernels.rms_norm(x, self.weight, self.eps)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
