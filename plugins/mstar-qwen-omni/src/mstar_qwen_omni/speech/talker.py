"""The talker: rows of the thinker and codes in, hidden states and frames of codes out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.step import Step
from mstar_core.engines.weights import Weights, load_weights
from mstar_core.errors import CheckpointError
from mstar_core.nn.linear import Linear, pack
from mstar_qwen_omni.config import QwenOmniConfig, TalkerConfig
from mstar_qwen_omni.decoder import Decoder
from mstar_qwen_omni.speech.names import talker_names
from mstar_qwen_omni.speech.predictor import CodePredictor, SampleGroup

Sample: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
"""Logits `[rows, vocab]` to ids `[rows]`."""

_THINKER_EMBEDDING = "thinker.model.embed_tokens.weight"


class Projection(nn.Module):
    """From the thinker's width to the talker's: linear, SiLU, linear."""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.up = Linear(inputs, [inner], bias=True)
        self.down = Linear(inner, [outputs], bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, inputs] -> [rows, outputs]`."""
        inner = self.up(x)
        # Not F.silu: on a CPU its last bits depend on how many rows there are, where the width is no multiple of 16.
        output: torch.Tensor = self.down(inner / (1.0 + (-inner).exp()))
        return output


class Talker(nn.Module):
    """Decoder, head of the first code, code predictor, and what joins them to the thinker."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.decoder.hidden
        self.text_projection = Projection(config.thinker_hidden, config.projection, hidden)
        self.hidden_projection = Projection(config.thinker_hidden, config.projection, hidden)
        self.embedding = nn.Parameter(torch.empty(config.decoder.vocab, hidden), requires_grad=False)
        self.decoder = Decoder(config.decoder)
        self.head = Linear(hidden, [config.decoder.vocab])
        self.predictor = CodePredictor(config.predictor)

    @classmethod
    def load(cls, directory: Path, config: TalkerConfig, *, device: torch.device, dtype: torch.dtype) -> Talker:
        """Read the talker's tensors of a whole checkpoint; raises `CheckpointError` listing all that is amiss."""
        with torch.device("meta"):
            model = cls(config)
        load_weights(
            model,
            Weights.open(directory),
            talker_names(config),
            device=device,
            dtype=dtype,
            ignore=("thinker.", "code2wav."),
            filled=pack,
        )
        model.prepare()
        return model

    def prepare(self) -> None:
        """Compute what depends on the weights: once, after they are there."""
        self.decoder.prepare()
        self.predictor.prepare()

    def rows(self, prompt: torch.Tensor) -> torch.Tensor:
        """The user's rows `[rows, hidden]` from those of the thinker `[rows, 2 * thinker_hidden + 1]`: embedding,
        accepted hidden state, and 1 where the row stands for media, whose hidden state is heard; of text it is the
        embedding."""
        width = self.config.thinker_hidden
        text = self.text_projection(prompt[:, :width])
        media = self.hidden_projection(prompt[:, width : 2 * width])
        return torch.where(prompt[:, 2 * width :] > 0, media, text)

    def frame(
        self, x: torch.Tensor, step: Step, sample: Sample, sample_group: SampleGroup
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The next frame's codes `[rows, groups]`, and the sum of their embeddings `[rows, hidden]`, for inputs of one
        token `[rows, hidden]`. Codes after one that ends the speech mean nothing."""
        hidden = self.decoder(x, step).final
        first = sample(self.head(hidden).float())  # [rows]
        embedded = F.embedding(first, self.embedding)
        residual, total = self.predictor(hidden, embedded, sample_group)
        return torch.cat([first[:, None], residual], 1), (embedded + total).to(x.dtype)


class AssistantRows:
    """What the talker reads beside the user's rows and the reply: rows of the thinker's embedding table (only those),
    and the rows that open the assistant's turn.

    pad, eos: `[1, thinker_hidden]`, spoken after the reply: `eos` once, then `pad`.
    bos: `[hidden]`, the codec's part of the first reply token's row.
    opening: `[8, hidden]` by speaker: the header of the turn, the codec's control ids, the speaker.
    """

    def __init__(self, directory: Path, config: QwenOmniConfig, talker: Talker) -> None:
        ids, codec = config.ids, config.talker.codec
        header = [ids.im_start, ids.assistant, ids.newline]
        table = _embeddings(directory, [*header, ids.tts_pad, ids.tts_bos, ids.tts_eos], talker)
        self.pad, self.eos = table[3:4], table[5:6]
        self.bos = talker.embedding[codec.bos]
        text = talker.text_projection(table[[0, 1, 2, 3, 3, 3, 3, 4]])  # [8, hidden]
        self.opening = {
            speaker: _with_codec(
                text, talker.embedding[[codec.nothink, codec.think_bos, codec.think_eos, number, codec.pad]]
            )
            for speaker, number in codec.speakers.items()
        }

    @property
    def count(self) -> int:
        """How many rows open the assistant's turn."""
        return len(next(iter(self.opening.values())))


def _with_codec(text: torch.Tensor, codec: torch.Tensor) -> torch.Tensor:
    """The codec's rows are added to the last of the text's."""
    rows = text.clone()
    rows[-len(codec) :] += codec
    return rows


def _embeddings(directory: Path, ids: list[int], like: Talker) -> torch.Tensor:
    """Rows of the thinker's table, `[ids, thinker_hidden]`, in the talker's dtype and on its device."""
    weights = Weights.open(directory)
    if _THINKER_EMBEDDING not in weights.shapes:
        raise CheckpointError(f"{directory}: {_THINKER_EMBEDDING} is missing, of which the talker needs some rows")
    rows = like.embedding.new_empty(len(ids), like.config.thinker_hidden)
    whole = slice(None)
    weights.read_all(
        [(rows[row : row + 1], _THINKER_EMBEDDING, (slice(id, id + 1), whole)) for row, id in enumerate(ids)]
    )
    return rows
