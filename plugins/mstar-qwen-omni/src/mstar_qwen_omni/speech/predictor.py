"""The code predictor: the residual codes of one frame, each from those before it.

A dense decoder that starts anew with every frame and sees at most `groups` positions: the talker's hidden state, the
embedding of the frame's first code, then those of the residual codes. Its steps are many and short, so that what counts
is how few operations they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.base import TensorParallel
from mstar_core.nn.linear import Linear
from mstar_core.nn.llama import GatedMLP
from mstar_core.nn.norm import RMSNorm
from mstar_core.nn.rotary import RotaryTable
from mstar_qwen_omni.config import DenseDecoderConfig
from mstar_qwen_omni.speech.frame import FrameAttention, Place, frame_places

SampleGroup: TypeAlias = "Callable[[torch.Tensor, int], torch.Tensor]"
"""`(logits [rows, vocab], number of the residual code from 0)` to ids `[rows]`."""


class PredictorBlock(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: DenseDecoderConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.eps)
        self.attention = FrameAttention(config)
        self.mlp_norm = RMSNorm(config.hidden, config.eps)
        self.mlp = GatedMLP(config.hidden, config.mlp, TensorParallel(), None)

    def forward(self, x: torch.Tensor, cache: torch.Tensor, place: Place) -> torch.Tensor:
        """`[rows * tokens, hidden]` to the same."""
        x = x + self.attention(self.attention_norm(x), cache, place)
        hidden: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return hidden


class CodePredictor(nn.Module):
    """Residual code g, from 0, has table and head number g."""

    def __init__(self, config: DenseDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.residuals = config.groups - 1
        self.tables = nn.Parameter(torch.empty(self.residuals * config.vocab, config.hidden), requires_grad=False)
        self.blocks = nn.ModuleList(PredictorBlock(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps)
        self.heads = nn.ModuleList(Linear(config.hidden, [config.vocab]) for _ in range(self.residuals))
        self._rotary: RotaryTable | None = None
        self._places: dict[int, list[Place]] = {}

    def prepare(self) -> None:
        """Compute what does not depend on the frame: once, after the weights are there."""
        config, tables = self.config, self.tables
        table = RotaryTable(config.head_dim, config.theta, config.groups, device=tables.device, dtype=tables.dtype)
        self._rotary = table
        for module in self.modules():
            if isinstance(module, FrameAttention):
                module.prepare(table)

    def forward(
        self, hidden: torch.Tensor, first: torch.Tensor, sample: SampleGroup
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual codes `[rows, groups - 1]` of one frame, and the sum of their embeddings, float32 `[rows,
        hidden]`.

        hidden: the talker's state that the first code was sampled from, `[rows, hidden]`; first: that code's embedding.
        """
        config, rows = self.config, hidden.shape[0]
        # What lies beyond the position is never read, so it is left as it is.
        cache = hidden.new_empty(config.layers, 2, rows, config.groups, config.kv_heads, config.head_dim)
        x = torch.stack([hidden, first], 1).flatten(0, 1)  # [rows * 2, hidden]
        tables = self.tables.view(self.residuals, config.vocab, config.hidden)
        codes: list[torch.Tensor] = []
        total = torch.zeros_like(first, dtype=torch.float32)
        for group, place in enumerate(self._places_of(rows)):
            states = self._run(x, cache, place)
            states = states[1::2] if place.tokens == 2 else states  # [rows, hidden]
            codes.append(sample(self.heads[group](self.norm(states)).float(), group))
            x = F.embedding(codes[-1], tables[group])
            total += x
        return torch.stack(codes, 1), total

    def _places_of(self, rows: int) -> list[Place]:
        assert self._rotary is not None, "prepare() was not called"
        if rows not in self._places:
            self._places[rows] = frame_places(self.config, rows, self._rotary)
        return self._places[rows]

    def _run(self, x: torch.Tensor, cache: torch.Tensor, place: Place) -> torch.Tensor:
        for layer, block in enumerate(self.blocks):
            x = block(x, cache[layer], place)
        return x
