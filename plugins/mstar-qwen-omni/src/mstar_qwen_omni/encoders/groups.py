"""Full attention inside each of many sequences, whose rows lie one behind the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from mstar_core.nn.transformer import Attend, attend_within


def attend_inside(lengths: Sequence[int], device: torch.device) -> Attend:
    """Attention for sequences of these lengths: one product for all that are equally long."""
    kinds = sorted(set(lengths))
    if len(kinds) == 1:
        return attend_within(len(lengths))
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)  # [sequences]
    groups = []
    for length in kinds:
        chosen = torch.tensor([each == length for each in lengths])
        rows = starts[chosen, None] + torch.arange(length)  # [sequences of this length, length]
        groups.append(rows.to(device))

    def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        attended = torch.empty_like(values)  # [rows, heads, head_dim]
        for rows in groups:
            q, k, v = (each[rows].transpose(1, 2) for each in (queries, keys, values))
            attended[rows] = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return attended

    return attend
