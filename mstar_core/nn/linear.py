"""Linear layers: fused outputs, tensor-parallel shards, weights packed once for the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.base import TensorParallel
from mstar_core.nn.packing import BATCH_HINT, OneDnnProduct, Product, packed_product

Reduce: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Sums a tensor over the ranks that share a node and gives every rank the sum; may work in place."""


class Linear(nn.Module):
    """`x [rows, inputs] -> [rows, sum(outputs)]`, without bias unless asked for.

    `outputs` are the sizes of the projections that share the input and are computed as one; their weights lie one
    below the other. With `split="outputs"` each rank holds its share of every projection (column parallel); with
    `split="inputs"` its share of the inputs (row parallel), and `reduce` sums the ranks' results. Raises ValueError
    where the ranks cannot share evenly, or several share the inputs without a `reduce`.
    """

    def __init__(
        self,
        inputs: int,
        outputs: Sequence[int],
        *,
        bias: bool = False,
        split: str = "outputs",
        parallel: TensorParallel | None = None,
        reduce: Reduce | None = None,
    ) -> None:
        super().__init__()
        size = parallel.size if parallel else 1
        self.inputs = shard_size(inputs, size) if split == "inputs" else inputs
        self.outputs = [shard_size(each, size) if split == "outputs" else each for each in outputs]
        self.split = split
        self.weight = nn.Parameter(torch.empty(sum(self.outputs), self.inputs), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(sum(self.outputs)), requires_grad=False) if bias else None
        self._product: Product | None = None
        self._reduce = reduce if split == "inputs" and size > 1 else None
        if split == "inputs" and size > 1 and reduce is None:
            raise ValueError(f"{size} tensor parallel ranks share the inputs of a layer: pass reduce, which sums them")

    def pack(self, rows: int = BATCH_HINT) -> None:
        """Reorder the weight for this CPU and free the plain one, where that helps: once, after loading.

        `rows` are how many the layer will mostly be given; it takes any number.
        """
        self._product = packed_product(self.weight, rows)
        if self._product is not None:
            self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, sum(outputs)]`."""
        if self._reduce is None:
            return self._multiply(x, self.bias)
        summed = self._reduce(self._multiply(x, None))
        return summed if self.bias is None else summed + self.bias

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        """`gelu(forward(x))` with the exact GELU (Hendrycks and Gimpel, 2016, arXiv:1606.08415), in one pass where
        the packed product can."""
        if isinstance(self._product, OneDnnProduct) and self._reduce is None:
            return self._product.gelu(x, self.bias)
        return F.gelu(self(x))

    def _multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, self.weight, bias) if self._product is None else self._product(x, bias)


def pack(module: nn.Module, rows: int = BATCH_HINT) -> None:
    """Pack a module if it is a `Linear`: what `load_weights` is to do with each module it has filled."""
    if isinstance(module, Linear):
        module.pack(rows)


def shard_size(size: int, ranks: int) -> int:
    """One rank's share of an axis; raises ValueError when it cannot be shared evenly."""
    if size % ranks:
        raise ValueError(f"an axis of {size} cannot be split over {ranks} ranks")
    return size // ranks
