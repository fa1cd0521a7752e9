"""Standard normal noise keyed by position: the same value whatever chunk, batch or device asks for it.

The decoder's noise blocks add Gaussian noise at inference too. Drawing it from a counter makes a stream reproducible
and makes overlapping windows agree. The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
numbers: as easy as 1, 2, 3", SC 2011); the normals come by Box and Muller (1958).

The key is the request's seed; the counter is (position // 4, block) and `position % 4` picks one of the four normals
that a counter gives. Normals are computed in float64 and rounded to float32 once, so that a last-digit difference
between two devices' logarithms or cosines does not show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LANES = 4


def philox4x32(counters: Tensor, keys: Tensor) -> Tensor:
    """Philox4x32-10: counters [4, ...] and keys [2, ...], 32-bit words in int64, -> random words [4, ...].

    Products of two words wrap at 64 bits, which leaves both halves' bits intact. Odd words carry a product's upper
    half along; it is masked off where it would be felt.
    """
    shape = (2, *[1] * (counters.dim() - 1))
    multipliers = torch.tensor(_MULTIPLIERS, device=counters.device).view(shape)
    steps = torch.tensor(_KEY_STEPS, device=counters.device).view(shape)
    even, odd = counters[0::2], counters[1::2]  # words 0 and 2; words 1 and 3
    for _ in range(_ROUNDS):
        products = (even * multipliers).flip(0)
        even = (products >> 32).bitwise_xor_(odd).bitwise_xor_(keys).bitwise_and_(_WORD)
        odd = products
        keys = (keys + steps) & _WORD
    odd = odd & _WORD
    return torch.stack([even[0], odd[0], even[1], odd[1]])


def position_noise(
    seeds: Sequence[int], starts: Sequence[Sequence[int]], lengths: Sequence[int], device: torch.device | str = "cpu"
) -> list[Tensor]:
    """Noise rows for every block: `lengths[k]` values of block k from position `starts[k][b]` on, for each request b.

    `seeds` has one integer per request (64 bits count). Returns float32 tensors [batch, lengths[k]].
    """
    first = [[start // _LANES for start in block] for block in starts]
    groups = [
        max(start % _LANES for start in block) + length + _LANES - 1
        for block, length in zip(starts, lengths, strict=True)
    ]
    counts = [count // _LANES for count in groups]
    normals = _normals(_counters(first, counts, device), _keys(seeds, device))  # [batch, groups, lanes]
    return [
        _cut(part.flatten(1), [start % _LANES for start in block], length)
        for part, block, length in zip(torch.split(normals, counts, dim=1), starts, lengths, strict=True)
    ]


def _counters(first: list[list[int]], counts: list[int], device: torch.device | str) -> Tensor:
    """Counter words [4, batch, groups] of all blocks side by side; `first[k][b]` is block k's first group."""
    groups = torch.cat(
        [
            torch.tensor(block, device=device)[:, None] + torch.arange(count, device=device)
            for block, count in zip(first, counts, strict=True)
        ],
        dim=1,
    )  # [batch, groups]
    block_ids = torch.repeat_interleave(torch.arange(len(counts), device=device), torch.tensor(counts, device=device))
    return torch.stack([groups & _WORD, groups >> 32, block_ids.expand_as(groups), torch.zeros_like(groups)])


def _keys(seeds: Sequence[int], device: torch.device | str) -> Tensor:
    """Key words [2, batch, 1]."""
    return torch.tensor([[seed & _WORD, (seed >> 32) & _WORD] for seed in seeds], device=device).T[..., None]


def _normals(counters: Tensor, keys: Tensor) -> Tensor:
    """Four normals for every counter: [batch, groups, 4], float32."""
    uniform = (philox4x32(counters, keys).double() + 0.5) / 2**32  # strictly between 0 and 1
    radius = (uniform[0::2].log() * -2).sqrt()  # [2, batch, groups]
    angle = uniform[1::2] * (2 * math.pi)
    pairs = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)  # [2, batch, groups, 2]
    return pairs.movedim(0, -2).flatten(-2).float()


def _cut(lanes: Tensor, offsets: list[int], length: int) -> Tensor:
    """Rows of `length` values, each from its own offset."""
    return torch.stack([row[offset : offset + length] for row, offset in zip(lanes, offsets, strict=True)])
