"""The node `thought`: what was thought, as the segment in which the model reads it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from mstar_bagel.config import BagelConfig
from mstar_bagel.tokenizer import BagelTokenizer
from mstar_core.engines.base import Call, NodeContext
from mstar_core.engines.stateless import StatelessNode


class Thought(StatelessNode):
    """Ids to text and back: the reference reads thoughts again as text, whose ids need not be those that were said."""

    def __init__(self, context: NodeContext) -> None:
        config: BagelConfig = context.config
        self._tokenizer = BagelTokenizer(context.checkpoint, config.ids)

    def signature(self, call: Call) -> Hashable:
        """Thoughts of any length go together."""
        return call.walk

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """`segment` int64 [ids] of each call's `said`, a list of int64 []."""
        thoughts = [self._tokenizer.thought([int(id) for id in call.inputs["said"]]) for call in calls]
        return [{"segment": torch.tensor(thought)} for thought in thoughts]
