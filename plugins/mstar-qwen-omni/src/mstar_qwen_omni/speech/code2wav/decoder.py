"""Code2wav: codes to samples at 24 kHz, as a stream that goes on from what its layers remember.

Frame t is first heard in sample `t * samples_per_frame - lag`: the transposed convolutions need the input after the
one that they stretch, and have none after the last, so that n frames make `n * samples_per_frame - lag` samples. All
else is causal; a stream decoded in any pieces is the stream decoded at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from mstar_core.engines.weights import Piece, Weights, load_weights
from mstar_core.nn.linear import pack
from mstar_qwen_omni.config import Code2WavConfig
from mstar_qwen_omni.speech.code2wav.convolutions import (
    KERNEL,
    CausalConv,
    ConvNextStage,
    Snake,
    SnakeStage,
)
from mstar_qwen_omni.speech.code2wav.memory import Memory
from mstar_qwen_omni.speech.code2wav.names import code2wav_names
from mstar_qwen_omni.speech.code2wav.transformer import WindowTransformer


@dataclass(frozen=True, slots=True)
class Stream:
    """Where one stream of frames stands: how many were decoded, and what the layers remember, `[numbers]` float32."""

    frames: int = 0
    memory: torch.Tensor | None = None


START = Stream()
"""A stream before its first frame."""


class Code2Wav(nn.Module):
    """The whole decoder.

    On a CPU the convolutions of a batch run stream by stream: they are no faster together, and whichever kernel is
    chosen for a shape, a stream's samples are the same bits alone and in any batch.
    """

    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.groups * config.codebook, config.hidden), requires_grad=False)
        self.transformer = WindowTransformer(config)
        self.ratios = nn.ModuleList(ConvNextStage(config.hidden, ratio) for ratio in config.ratios)
        self.first = CausalConv(config.hidden, config.channels, KERNEL)
        widths = [config.channels >> stage for stage in range(len(config.rates) + 1)]
        self.rates = nn.ModuleList(SnakeStage(width, rate) for width, rate in zip(widths, config.rates, strict=False))
        self.snake = Snake(widths[-1])
        self.last = CausalConv(widths[-1], 1, KERNEL)

    @classmethod
    def load(cls, directory: Path, config: Code2WavConfig, *, device: torch.device) -> Code2Wav:
        """Read the decoder's tensors of a whole checkpoint in float32; raises `CheckpointError` listing all that is
        amiss."""
        with torch.device("meta"):
            model = cls(config)
        load_weights(
            model,
            Weights.open(directory),
            {name: [Piece(each) for each in theirs] for name, theirs in code2wav_names(config).items()},
            device=device,
            dtype=torch.float32,
            ignore=("thinker.", "talker."),
            filled=_prepare,
        )
        return model

    @property
    def lag(self) -> int:
        """Samples by which n frames fall short of `n * samples_per_frame`."""
        return lag(self.config)

    def decode(self, codes: torch.Tensor, streams: Sequence[Stream]) -> tuple[torch.Tensor, list[Stream]]:
        """The samples `[batch, samples]` that the next frames of some streams add, and where the streams stand then.

        codes: int64 `[batch, frames, groups]`, at least one frame; the streams all begin, or none does.
        """
        batch, frames, groups = codes.shape
        assert len({stream.frames == 0 for stream in streams}) == 1, "streams that begin run in a batch of their own"
        memory = Memory(_stacked(streams))
        rows = codes + torch.arange(groups, device=codes.device) * self.config.codebook
        hidden = F.embedding(rows, self.embedding).mean(2)  # [batch, frames, hidden]
        past = torch.tensor([stream.frames for stream in streams], device=codes.device)
        samples = self._sound(self.transformer(hidden, past, memory).mT, memory)
        after = memory.after()
        # A stream must not keep the memories of the whole batch alive.
        kept = list(after) if batch == 1 else [row.clone() for row in after]
        stands = [Stream(stream.frames + frames, row) for stream, row in zip(streams, kept, strict=True)]
        return samples, stands

    def whole(self, codes: torch.Tensor) -> torch.Tensor:
        """All samples `[samples]` of frames `[frames, groups]`."""
        return self.decode(codes[None], [START])[0][0]

    def _sound(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        """Samples `[batch, samples]` of hidden states `[batch, hidden, frames]`."""
        if x.shape[0] == 1 or x.device.type != "cpu":
            return self._convolve(x, memory)
        parts = [memory.rows(slice(index, index + 1)) for index in range(x.shape[0])]
        samples = torch.cat([self._convolve(x[index : index + 1], part) for index, part in enumerate(parts)])
        memory.join(parts)
        return samples

    def _convolve(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        for stage in self.ratios:
            x = stage(x, memory)
        x = self.first(x, memory)
        for stage in self.rates:
            x = stage(x, memory)
        samples: torch.Tensor = self.last(self.snake(x), memory)
        return samples[:, 0].clamp_(-1.0, 1.0)


def lag(config: Code2WavConfig) -> int:
    """Samples by which n frames fall short of `n * samples_per_frame`: one input's worth of each snake stage, stretched
    by the stages after it."""
    short = 0
    for rate in config.rates:
        short = (short + 1) * rate
    return short


def _prepare(module: nn.Module) -> None:
    if isinstance(module, Snake):
        module.prepare()
    pack(module)


def _stacked(streams: Sequence[Stream]) -> torch.Tensor | None:
    kept = [stream.memory for stream in streams if stream.memory is not None]
    if not kept:
        return None
    return torch.stack(kept) if len(kept) > 1 else kept[0][None]
