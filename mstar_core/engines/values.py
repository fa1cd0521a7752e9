"""Turning the inputs of a batch's calls into one tensor, without copies where the values already lie together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mstar_core.engines.base import Row


def tensor_of(value: Any, device: torch.device) -> torch.Tensor:
    """One input as a tensor on the device; a `Row` must have been computed."""
    if isinstance(value, Row):
        value = value.tensor()
    return torch.as_tensor(value).to(device, non_blocking=True)


def stacked(values: Sequence[Any], device: torch.device) -> torch.Tensor:
    """`[calls, ...]` from one value per call. Rows of one batch are taken as they lie: untouched if they are all of
    its rows in order, else by one gather."""
    together = _batch_of(values)
    if together is None:
        return torch.stack([tensor_of(value, device) for value in values])
    indices = [value.index for value in values]
    if indices == list(range(together.shape[0])):
        return together
    return together.index_select(0, torch.tensor(indices, device=together.device))


def _batch_of(values: Sequence[Any]) -> torch.Tensor | None:
    """The tensor that all values are rows of, if there is one."""
    first = values[0]
    if not isinstance(first, Row):
        return None
    source = first.output.tensors[first.port]
    if not isinstance(source, torch.Tensor):
        return None
    same = all(isinstance(value, Row) and value.output is first.output and value.port == first.port for value in values)
    return source if same else None
