"""A sparse mixture of experts, computed as two grouped products whatever the tokens choose.

A router gives every token its experts (Shazeer et al., 2017, arXiv:1701.06538), each a gated MLP, and optionally a
shared expert sees them all (Dai et al., 2024, arXiv:2401.06066). The layout is that of Qwen3-MoE.

The rows that an expert computes lie together, and `grouped_mm` multiplies each group with its expert's weights. On a
CPU nothing else was faster both for few tokens and for many. Milliseconds on one core (AVX-512 with AMX), with 8 of 128
experts of 1024 x 384 in bfloat16:

| tokens | grouped_mm | a loop over experts | experts padded to one length | weights gathered per token |
|---|---|---|---|---|
| 1 | 2.5 | 2.2-3.9 | 36 | 9.7 |
| 4 | 11.6 | 11.6 | 42 | 89 |
| 16 | 32 | 34 | 50 | 295 |
| 256 | 111 | 112 | 148 | |

**Same bits alone and beside others.** In bfloat16 a row's product on a CPU does not depend on how many rows its group
has. In float32 other kernels run for one row, for few, and from 16 on, so a group there is filled up to 16 rows: 2 to
2.6 times the cost for 1 to 16 tokens, and nothing for 256. On CUDA nothing is promised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.base import TensorParallel
from mstar_core.engines.weights import Piece
from mstar_core.nn.activations import gated_silu
from mstar_core.nn.linear import Linear
from mstar_core.nn.llama import GatedMLP

_LEAST_ROWS = 16
"""Rows from which a float32 product on a CPU has the same bits for any number of them: measured with MKL on AVX-512, it
was between 2 and 16 for inputs of 24 to 2048."""


@dataclass(frozen=True, slots=True)
class Routes:
    """Which experts each token goes to, the heaviest first, and how much each counts."""

    experts: torch.Tensor  # [tokens, per_token] int64
    weights: torch.Tensor  # [tokens, per_token]


class Router(nn.Module):
    """The `per_token` likeliest experts by a softmax over all of them; `normalised` weights sum to 1."""

    def __init__(self, hidden: int, experts: int, per_token: int, *, normalised: bool) -> None:
        super().__init__()
        self.per_token = per_token
        self.normalised = normalised
        self.scores = Linear(hidden, [experts])

    def forward(self, x: torch.Tensor) -> Routes:
        """Routes for `[tokens, hidden]`; probabilities are float32, weights in the dtype of `x`."""
        probabilities = self.scores(x).float().softmax(-1)  # [tokens, experts]
        weights, experts = probabilities.topk(self.per_token, dim=-1)
        if self.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return Routes(experts, weights.to(x.dtype))


class Experts(nn.Module):
    """Gated MLPs with fused weights: `gate_up` [experts, 2 * width, hidden] and `down` [experts, hidden, width].

    The bytes of a row of either, `hidden` and `width` times the size of a value, must be multiples of 16.
    """

    def __init__(self, experts: int, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * width, hidden), requires_grad=False)
        self.down = nn.Parameter(torch.empty(experts, hidden, width), requires_grad=False)
        self._gate = gated_silu()

    def forward(self, x: torch.Tensor, routes: Routes) -> torch.Tensor:
        """`[tokens, hidden] -> [tokens, hidden]`: each token's experts, weighted and summed."""
        plan = grouped(routes.experts, self.gate_up.shape[0], least=_least_rows(x))
        gate_up = F.grouped_mm(x[plan.token_of], self.gate_up.transpose(1, 2), offs=plan.ends)
        rows = F.grouped_mm(self._gate(gate_up), self.down.transpose(1, 2), offs=plan.ends)  # [rows, hidden]
        chosen = rows[plan.row_of] * routes.weights[..., None]  # [tokens, per_token, hidden]
        return chosen.sum(1)


class SharedExpert(nn.Module):
    """A gated MLP that every token goes through, and how much of it each token takes."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.mlp = GatedMLP(hidden, width, TensorParallel(), None)
        self.gate = Linear(hidden, [1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`sigmoid(gate(x)) * mlp(x)`, `[tokens, hidden] -> [tokens, hidden]`."""
        # Not torch.sigmoid: in float32 its bits depend on the element's place in the vector registers.
        share = 1 / (1 + (-self.gate(x).float()).exp())  # [tokens, 1]
        output: torch.Tensor = share.to(x.dtype) * self.mlp(x)
        return output


class MixtureOfExperts(nn.Module):
    """A layer's router, its experts, and its shared expert where `shared_width` is not 0."""

    def __init__(
        self, hidden: int, experts: int, per_token: int, width: int, *, normalised: bool, shared_width: int = 0
    ) -> None:
        super().__init__()
        self.router = Router(hidden, experts, per_token, normalised=normalised)
        self.experts = Experts(experts, hidden, width)
        self.shared = SharedExpert(hidden, shared_width) if shared_width else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[tokens, hidden] -> [tokens, hidden]`."""
        output: torch.Tensor = self.experts(x, self.router(x))
        return output if self.shared is None else output + self.shared(x)


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in the order of the experts that compute them, those of one expert together.

    Rows past the last end, and those that only fill a group up, are computed for nobody.
    """

    token_of: torch.Tensor  # [rows] int64
    row_of: torch.Tensor  # [tokens, per_token] int64
    ends: torch.Tensor  # [experts] int32: where each expert's rows end


def grouped(chosen: torch.Tensor, experts: int, *, least: int = 1) -> Groups:
    """Sort the pairs of token and expert, `chosen` `[tokens, per_token]`, into groups.

    A group that is not empty has at least `least` rows. The number of all rows depends on shapes alone, so that nothing
    waits for the device.
    """
    tokens, per_token = chosen.shape
    pairs = chosen.flatten()
    sorted_pairs, order = pairs.sort(stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=pairs.device)
    counts.scatter_add_(0, pairs, torch.ones_like(pairs))
    sizes = torch.where(counts > 0, counts.clamp(min=least), 0)
    ends = sizes.cumsum(0)
    gaps = (ends - sizes) - (counts.cumsum(0) - counts)  # [experts]: filling rows before each group
    rows = torch.arange(len(pairs), device=pairs.device) + gaps[sorted_pairs]
    most = len(pairs) + (least - 1) * min(experts, len(pairs))
    token_of = torch.zeros(most, dtype=torch.int64, device=pairs.device).scatter_(0, rows, order // per_token)
    row_of = torch.empty_like(rows).scatter_(0, order, rows)
    return Groups(token_of, row_of.view(tokens, per_token), ends.to(torch.int32))


def moe_names(ours: str, theirs: str, experts: int, *, shared: bool = False) -> dict[str, list[Piece]]:
    """Which published tensors make up a `MixtureOfExperts`, by Hugging Face's names: experts one by one.

    `ours` is the name of the module, `theirs` of the published one (`model.layers.0.mlp`).
    """
    each = [f"{theirs}.experts.{expert}" for expert in range(experts)]
    names = {
        f"{ours}.router.scores.weight": [Piece(f"{theirs}.gate.weight")],
        f"{ours}.experts.gate_up": [Piece(f"{one}.{part}_proj.weight") for one in each for part in ("gate", "up")],
        f"{ours}.experts.down": [Piece(f"{one}.down_proj.weight") for one in each],
    }
    if shared:
        names |= {
            f"{ours}.shared.mlp.gate_up.weight": [
                Piece(f"{theirs}.shared_expert.{part}_proj.weight") for part in ("gate", "up")
            ],
            f"{ours}.shared.mlp.down.weight": [Piece(f"{theirs}.shared_expert.down_proj.weight")],
            f"{ours}.shared.gate.weight": [Piece(f"{theirs}.shared_expert_gate.weight")],
        }
    return names


def _least_rows(x: torch.Tensor) -> int:
    return _LEAST_ROWS if x.device.type == "cpu" and x.dtype == torch.float32 else 1
