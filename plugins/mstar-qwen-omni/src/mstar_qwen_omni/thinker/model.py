"""Embeddings, decoder and head of the thinker, and which published tensors they are made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.base import NodeContext
from mstar_core.engines.weights import Piece, Weights, load_weights
from mstar_core.nn.linear import Linear, pack
from mstar_qwen_omni.config import DecoderConfig, QwenOmniConfig
from mstar_qwen_omni.decoder import Decoder, decoder_names

OTHERS = ("thinker.audio_tower.", "thinker.visual.", "talker.", "code2wav.")
"""What the names of other nodes' tensors begin with."""


class ThinkerModel(nn.Module):
    """From ids to logits; rows of media take the place of embeddings in between."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(config.vocab, config.hidden), requires_grad=False)
        self.decoder = Decoder(config)
        self.head = Linear(config.hidden, [config.vocab])

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """`[tokens, hidden]` for ids int64 `[tokens]`."""
        return F.embedding(ids, self.embedding)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, vocab]` float32 for normalised hidden states `[rows, hidden]`."""
        logits: torch.Tensor = self.head(hidden).float()
        return logits


def load_thinker(context: NodeContext) -> ThinkerModel:
    """Build on `meta`, load the published tensors, pack each layer as soon as it is there.

    Raises `CheckpointError` listing all that is amiss.
    """
    config: QwenOmniConfig = context.config
    with torch.device("meta"):
        model = ThinkerModel(config.thinker)
    load_weights(
        model,
        Weights.open(context.checkpoint),
        thinker_names(config.thinker),
        device=context.device,
        dtype=context.dtype,
        ignore=OTHERS,
        filled=pack,
    )
    model.decoder.prepare()
    return model


def thinker_names(config: DecoderConfig) -> dict[str, list[Piece]]:
    """Pieces by parameter of `ThinkerModel`, in the layout of the published checkpoint."""
    return {
        "embedding": [Piece("thinker.model.embed_tokens.weight")],
        "head.weight": [Piece("thinker.lm_head.weight")],
        **decoder_names("decoder", "thinker.model", config),
    }
