"""The action-conditioned predictor: what the next frame's latents are, from all frames, actions and poses so far.

A frame is one *slot* of tokens: action, pose, maybe the camera, and its patches. Tokens see their own slot and all
earlier ones, so a slot is computed once and its keys and values are kept (facebookresearch/vjepa2,
`src/models/ac_predictor.py`, which computes all slots again for every frame).
"""

from __future__ import annotations

import torch
from torch import nn

from mstar_core.engines.attention.base import KVLayout
from mstar_core.engines.base import NodeContext
from mstar_core.engines.weights import load_weights
from mstar_core.nn.linear import Linear
from mstar_core.nn.transformer import Attend, LayerNorm, Rotary, TransformerBlock
from mstar_vjepa.rotary import angles, axis_angles, axis_width, reorder_and_pack, tables
from mstar_vjepa.world.config import ACTION, CAMERA, MOST_SLOTS, WorldConfig
from mstar_vjepa.world.encoder import normalise
from mstar_vjepa.world.weights import predictor_names, weights_of


class SlotRotary:
    """Rotary tables of a slot's tokens: one for the places in a slot and one for time, put together per step.

    Columns count `rows / columns` each, so that both axes end alike; tokens without a place only turn with time.
    """

    def __init__(self, config: WorldConfig, device: torch.device, dtype: torch.dtype) -> None:
        grid, head_dim = config.patches, config.predictor.head_dim
        row, column = torch.meshgrid(torch.arange(grid.rows), torch.arange(grid.columns), indexing="ij")
        still = torch.zeros(grid.tokens)
        patches = angles(still, row.flatten(), column.flatten() * (grid.rows / grid.columns), head_dim)
        places = torch.cat([torch.zeros(config.conditions, head_dim), patches])  # [slot, head_dim]
        time = torch.zeros(MOST_SLOTS, head_dim)
        time[:, : axis_width(head_dim)] = axis_angles(torch.arange(MOST_SLOTS), head_dim)
        self._slot = config.slot
        self._turning = axis_width(head_dim) // 2  # channels of each half of a head that turn with time
        self._places = tables(places, device, dtype)
        self._time = tables(time, device, dtype)

    def at(self, positions: torch.Tensor) -> Rotary:
        """Tables for the tokens at `positions` `[tokens]` of their sequences: two of `[tokens, 1, head_dim]`."""
        slot = torch.div(positions, self._slot, rounding_mode="floor")
        place = positions - slot * self._slot
        cos, sin = (
            self._merged(places.index_select(0, place), time.index_select(0, slot))
            for places, time in zip(self._places, self._time, strict=True)
        )
        return cos, sin

    def _merged(self, places: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        half, turning = places.shape[-1] // 2, self._turning
        for start in (0, half):
            places[..., start : start + turning] = time[..., start : start + turning]
        return places


class ActionPredictor(nn.Module):
    """The predictor's weights and one slot's way through them."""

    def __init__(self, config: WorldConfig) -> None:
        super().__init__()
        tower, width = config.predictor, config.encoder.hidden
        self.config = config
        self.kv = KVLayout(layers=tower.layers, kv_heads=tower.heads, head_dim=tower.head_dim)
        self.embed = Linear(width, [tower.hidden], bias=True)
        self.sizes = [ACTION, ACTION, CAMERA][: config.conditions]
        self.conditions = nn.ModuleList(Linear(size, [tower.hidden], bias=True) for size in self.sizes)
        self.blocks = nn.ModuleList(
            TransformerBlock(tower.hidden, tower.heads, tower.mlp, tower.eps, layer) for layer in range(tower.layers)
        )
        self.norm = LayerNorm(tower.hidden, tower.eps)
        self.project = Linear(tower.hidden, [width], bias=True)

    def forward(self, frames: torch.Tensor, conditions: torch.Tensor, rotary: Rotary, attend: Attend) -> torch.Tensor:
        """Hidden states `[slots, slot, hidden]` for latents `[slots, tokens, width]` and conditions `[slots, n]`."""
        x = self.tokens(frames, conditions)
        for block in self.blocks:
            x = block(x, attend, rotary)
        return x.view(len(frames), -1, x.shape[-1])

    def tokens(self, frames: torch.Tensor, conditions: torch.Tensor) -> torch.Tensor:
        """The slots' tokens one after the other, `[slots * slot, hidden]`."""
        slots, weight = len(frames), self.norm.weight
        patches = self.embed(frames.reshape(-1, frames.shape[-1]).to(weight.dtype)).view(slots, -1, len(weight))
        numbers = torch.split(conditions.to(weight.dtype), self.sizes, dim=1)
        tokens = [layer(each)[:, None] for layer, each in zip(self.conditions, numbers, strict=True)]
        return torch.cat([*tokens, patches], dim=1).flatten(0, 1)

    def next_frames(self, hidden: torch.Tensor) -> torch.Tensor:
        """What follows each slot, latents float32 `[slots, tokens, width]`, from hidden states of its tokens."""
        patches = hidden[:, self.config.conditions :]
        predicted: torch.Tensor = self.project(self.norm(patches).flatten(0, 1))
        return normalise(predicted.view(*patches.shape[:2], -1).float(), self.config.latent_eps)


def load_predictor(context: NodeContext) -> ActionPredictor:
    """Build on `meta` and load; raises `CheckpointError` listing all that is amiss."""
    config: WorldConfig = context.config
    with torch.device("meta"):
        model = ActionPredictor(config)
    load_weights(
        model,
        weights_of(context.checkpoint, "predictor"),
        predictor_names(config.predictor.layers, extrinsics=config.extrinsics),
        device=context.device,
        dtype=context.dtype,
        ignore=() if config.extrinsics else ("extrinsics_encoder",),
        filled=reorder_and_pack(config.predictor.heads, config.slot),
    )
    return model
