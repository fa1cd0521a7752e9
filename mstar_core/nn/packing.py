"""Weights reordered once for the CPU, and the products that read them.

A row's product has the same bits whatever the number of rows is: by construction with the compiled kernels, and with
oneDNN for every number but one, where another kernel may run; there a single row is computed beside a copy of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F

from mstar_core.engines.kernels import Kernels, current_kernels

Product: TypeAlias = "Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]"
"""`(x [rows, inputs], bias [outputs] or None) -> [rows, outputs]`."""

BATCH_HINT = 16
"""Rows that oneDNN chooses the packed layout for, where a layer does not say how many it will mostly have.

Measured on AVX-512 with AMX: a hint of 1 gains nothing over plain weights, one of 66 gains 3 % over 16 at 66 rows.
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

    def __init__(self, weight: torch.Tensor, rows: int = BATCH_HINT) -> None:
        self._packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        if torch.compiler.is_compiling():
            product: torch.Tensor = _onednn_operator(x, self._packed, bias)
            return product
        return _onednn_linear(x, self._packed, bias)

    def gelu(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`gelu(x @ weight.T + bias)`, the exact GELU, in one pass."""
        if torch.compiler.is_compiling():
            return F.gelu(self(x, bias))
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(_rows(x), self._packed, bias, "gelu", [], "none")
        return product[: x.shape[0]]


def _rows(x: torch.Tensor) -> torch.Tensor:
    """A single row beside a copy of itself."""
    return x.expand(2, -1).contiguous() if x.shape[0] == 1 else x


def _onednn_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(_rows(x), packed, bias, "none", [], "")
    return product[: x.shape[0]]


# Inductor lowers oneDNN's own operator only for weights that it froze itself, so that compiled code needs one that it
# leaves alone. Eager code calls the function directly, which saves an operator's dispatch per layer.
_onednn_operator = torch.library.custom_op(
    "mstar::packed_linear",
    _onednn_linear,
    mutates_args=(),
    schema="(Tensor x, Tensor packed, Tensor? bias) -> Tensor",
)


@_onednn_operator.register_fake
def _(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty(x.shape[0], packed.shape[0])


def packed_product(weight: torch.Tensor, rows: int = BATCH_HINT) -> Product | None:
    """The product of a weight in the layout that is best here for so many rows; None where plain weights are."""
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    kernels = current_kernels()
    if kernels is not None and kernels.packs(weight):
        return CompiledProduct(weight, kernels)
    return OneDnnProduct(weight, rows) if _onednn_packs(weight.dtype) else None


def _onednn_packs(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return supported
    return True
