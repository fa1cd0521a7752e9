"""Linear layers: fused outputs, tensor-parallel shards, weights packed once for the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.base import TensorParallel
from mstar_core.nn.packing import Product, packed_product


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
        self._product: Product | None = None

    def pack(self) -> None:
        """Reorder the weight for this CPU and free the plain one, where that helps: once, after loading."""
        self._product = packed_product(self.weight)
        if self._product is not None:
            self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, sum(outputs)]`."""
        return F.linear(x, self.weight, self.bias) if self._product is None else self._product(x, self.bias)


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
