"""The leading entries of each row in one fixed order: larger value first, then smaller index.

The order is total, so it is the same for every algorithm, device, batch and number of leading entries asked for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


def leading(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `count` of each row of `values` `[rows, entries]` float32: their values and indices, `[rows, count]`.

    Where `count` is less than all, entries equal to the last one returned may be missing and their order is not
    defined: only what is larger than the last one may be used.
    """
    if count < values.shape[1]:
        top, indices = values.topk(count)
        by_index, order = indices.sort(dim=1)
        top, order = top.gather(1, order).sort(dim=1, descending=True, stable=True)
        return top, by_index.gather(1, order)
    if values.device.type == "cpu":
        return _sorted_by_key(values)
    top, indices = values.sort(dim=1, descending=True, stable=True)
    return top, indices


def _sorted_by_key(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All entries, by sorting one integer for each: NumPy sorts integers with vector instructions, which makes it
    several times faster than PyTorch's stable sort of values with their indices."""
    floats = values.numpy() + np.float32(0)  # turns -0.0, which equals 0.0, into it
    keys = (~_ordered(floats) << 32) | np.arange(values.shape[1])
    keys.sort(axis=1)
    indices = keys & 0xFFFFFFFF
    return torch.from_numpy(np.take_along_axis(floats, indices, axis=1)), torch.from_numpy(indices)


def _ordered(floats: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """32-bit integers in the order of the floats: the bits of a negative float count down as it goes up."""
    bits = floats.view(np.int32).astype(np.int64)
    return np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
