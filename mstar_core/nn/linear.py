"""Linear layers: fused outputs, tensor-parallel shards, weights packed once for the CPU.

On a CPU a weight is reordered once, after loading, into oneDNN's blocked layout (batch hint 16, the size of a decode
batch); the plain tensor is freed. oneDNN's packed kernels give a row the same bits whatever the number of rows, with
one exception: in float32 a single row may go through another kernel, so it is computed beside a copy of itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.base import TensorParallel

_BATCH_HINT = 16
"""Rows that the packed layout is chosen for.

Measured on AVX-512 with AMX: a hint of 1 gains nothing over plain weights.
"""


class Linear(nn.Module):
    """`x [rows, inputs] -> [rows, sum(outputs)]`, without bias unless asked for.

    `outputs` are the sizes of the projections that share the input and are computed as one; their weights lie one
    below the other. With `split="outputs"` each rank holds its share of every projection (column parallel); with
    `split="inputs"` its share of the inputs (row parallel), and the results of all ranks have to be summed.
    """

    def __init__(
        self,
        inputs: int,
        outputs: Sequence[int],
        *,
        bias: bool = False,
        split: str = "outputs",
        parallel: TensorParallel | None = None,
    ) -> None:
        super().__init__()
        size = parallel.size if parallel else 1
        self.inputs = shard_size(inputs, size) if split == "inputs" else inputs
        self.outputs = [shard_size(each, size) if split == "outputs" else each for each in outputs]
        self.split = split
        self.weight = nn.Parameter(torch.empty(sum(self.outputs), self.inputs), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(sum(self.outputs)), requires_grad=False) if bias else None
        self._packed: torch.Tensor | None = None

    def pack(self) -> None:
        """Reorder the weight for oneDNN, if it lies on a CPU in a dtype that oneDNN takes: once, after loading."""
        weight = self.weight
        if weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16) and _onednn_packs():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _BATCH_HINT)
            self.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, sum(outputs)]`."""
        if self._packed is None:
            return F.linear(x, self.weight, self.bias)
        if x.shape[0] == 1:
            return self._product(x.expand(2, -1).contiguous())[:1]
        return self._product(x)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return product


def pack_linears(module: nn.Module) -> None:
    """Pack every `Linear` below a module."""
    for child in module.modules():
        if isinstance(child, Linear):
            child.pack()


def shard_size(size: int, ranks: int) -> int:
    """One rank's share of an axis; raises ValueError when it cannot be shared evenly."""
    if size % ranks:
        raise ValueError(f"an axis of {size} cannot be split over {ranks} ranks")
    return size // ranks


def _onednn_packs() -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
