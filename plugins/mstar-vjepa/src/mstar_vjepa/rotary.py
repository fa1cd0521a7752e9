"""The rotary embedding of all V-JEPA 2 models: three axes, and two frequencies in each pair of channels.

A head's channels are split into equal parts for time, row and column, each of an even width; what is left over is not
rotated. Angles are tiled over a part as [f0, f1, ..., f0, f1, ...], while pairs are neighbouring channels, so the two
members of a pair turn by different angles: this is no rotation, and scores depend on absolute positions. The weights
were trained with it (facebookresearch/vjepa2, `rotate_queries_or_keys`).

Heads are kept in another order of channels, pairs (i, i + head_dim / 2) instead of neighbours, for queries and keys
alike, which leaves their products as they are; `nn.rotary.rotate` then applies.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from mstar_core.nn.linear import Linear, pack
from mstar_core.nn.transformer import Rotary

_BASE = 10000.0


def axis_width(head_dim: int) -> int:
    """Channels of a head that turn with one axis: the largest even number of which three fit."""
    return head_dim // 3 // 2 * 2


def axis_angles(positions: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Angles of one axis's channels at positions `[n]`, `[n, axis_width]` float32."""
    pairs = axis_width(head_dim) // 2
    frequencies = _BASE ** -(torch.arange(pairs, dtype=torch.float32) / pairs)
    return (positions.float()[:, None] * frequencies).repeat(1, 2)


def angles(time: torch.Tensor, row: torch.Tensor, column: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Angles of a head's channels in the published order, `[n, head_dim]`, for positions `[n]` on each axis."""
    turned = torch.cat([axis_angles(each, head_dim) for each in (time, row, column)], dim=-1)
    return torch.nn.functional.pad(turned, (0, head_dim - turned.shape[1]))


def tables(angles: torch.Tensor, device: torch.device, dtype: torch.dtype) -> Rotary:
    """Cosines and signed sines for `rotate`, `[n, 1, head_dim]` each, with channels in our order."""
    first, second = angles[:, 0::2], angles[:, 1::2]
    cos = torch.cat([first.cos(), second.cos()], dim=-1)
    sin = torch.cat([-first.sin(), second.sin()], dim=-1)
    return cos.to(device, dtype)[:, None], sin.to(device, dtype)[:, None]


def grid_angles(slots: int, rows: int, columns: int, head_dim: int) -> torch.Tensor:
    """Angles of every token of `slots` temporal slots, in the order time, row, column, `[tokens, head_dim]`."""
    time, row, column = torch.meshgrid(
        torch.arange(slots), torch.arange(rows), torch.arange(columns), indexing="ij"
    )  # [slots, rows, columns] each
    return angles(time.flatten(), row.flatten(), column.flatten(), head_dim)


def reorder_and_pack(heads: int, rows: int) -> Callable[[nn.Module], None]:
    """What `load_weights` is to do with each module it has filled: reorder the heads of a fused projection, and pack
    for `rows` tokens."""

    def filled(module: nn.Module) -> None:
        if isinstance(module, Linear) and len(module.outputs) == 3:
            reorder_heads(module, heads)
        pack(module, rows)

    return filled


def reorder_heads(projection: Linear, heads: int) -> None:
    """Put the channels of a fused projection's queries and keys into our order."""
    hidden = projection.outputs[0]
    place = torch.arange(hidden).view(heads, -1, 2)  # [heads, pairs, 2]
    order = place.transpose(1, 2).flatten().to(projection.weight.device)  # first members, then second, of each head
    for start in (0, hidden):
        for values in (projection.weight, projection.bias):
            assert values is not None
            values[start : start + hidden] = values[start : start + hidden][order]
