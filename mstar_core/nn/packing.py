"""Weights reordered once for the CPU, and the products that read them.

A row's product has the same bits whatever the number of rows is: by construction with the compiled kernels, and with
oneDNN for every number but one, where another kernel may run; there a single row is computed beside a copy of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from mstar_core.engines.kernels import Kernels, current_kernels

Product: TypeAlias = "Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]"
"""`(x [rows, inputs], bias [outputs] or None) -> [rows, outputs]`."""

_BATCH_HINT = 16
"""Rows that oneDNN chooses the packed layout for.

Measured on AVX-512 with AMX: a hint of 1 gains nothing over plain weights.
"""


class CompiledProduct:
    """A weight `[outputs, inputs]` in the order of the compiled kernels."""

    def __init__(self, weight: torch.Tensor, kernels: Kernels) -> None:
        self._kernels = kernels
        self._outputs = weight.shape[0]
        self._packed = kernels.pack(weight)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        return self._kernels.linear(x, self._packed, self._outputs, bias)


class OneDnnProduct:
    """A weight `[outputs, inputs]` in oneDNN's blocked layout."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _BATCH_HINT)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        if x.shape[0] > 1:
            return self._several(x, bias)
        return self._several(x.expand(2, -1).contiguous(), bias)[:1]

    def _several(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")
        return product


def packed_product(weight: torch.Tensor) -> Product | None:
    """The product of a weight in the layout that is best here; None where plain weights are."""
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    kernels = current_kernels()
    if kernels is not None and kernels.packs(weight):
        return CompiledProduct(weight, kernels)
    return OneDnnProduct(weight) if _onednn_packs() else None


def _onednn_packs() -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
