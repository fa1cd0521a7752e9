"""The node `code2wav`: frames to samples, for many requests.

`exact` goes on from what the layers remember of the request's stream, so that the samples are those of one decode of
all frames, however they are cut, without gaps and without computing anything twice. The alternative, decoding some
frames of context again for every chunk, would need `layers * (window - 1)` frames of it to be exact: 568 in the
published model, which costs more than the chunk.

`compat` is the reference's `chunked_decode`: pieces of 300 frames behind 25 frames of context that are decoded
again and cut off, which loses `lag` samples at every border.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mstar_core.engines.base import Call, Chunk, NodeContext, NodeRequest
from mstar_core.engines.stateless import StatelessNode
from mstar_qwen_omni.speech.chunks import COMPAT_CHUNK, COMPAT_CONTEXT
from mstar_qwen_omni.speech.code2wav.decoder import START, Code2Wav, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Sounding:
    """Where one request stands: its stream, or the frames that wait for a piece to be full, behind their context."""

    stream: Stream = START
    context: tuple[torch.Tensor, ...] = ()
    waiting: tuple[torch.Tensor, ...] = ()


class Vocoder(StatelessNode):
    """Computes in float32, whatever the model's dtype is: the decoder is small, and its sums run over long streams."""

    def __init__(self, context: NodeContext) -> None:
        self.decoder = Code2Wav.load(context.checkpoint, context.config.code2wav, device=context.device)
        self._device = context.device
        self._frame = context.config.code2wav.samples_per_frame

    def open(self, request: NodeRequest) -> Sounding:
        """The beginning of a stream."""
        return Sounding()

    def signature(self, call: Call) -> Hashable:
        """As many new frames of streams that all begin, or of which none does; `compat` runs one by one anyway."""
        mode: str = call.request.params["vocoder"]
        if mode == "compat":
            return mode
        return mode, len(_new(call)), call.request.state.stream.frames == 0

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """New samples of each chunk, float32 [samples]; nothing where there are none."""
        if calls[0].request.params["vocoder"] == "compat":
            made = [self._compat(call) for call in calls]
        elif _new(calls[0]):
            made = self._exact(calls)
        else:
            return [{}] * len(calls)
        for call, (_, state) in zip(calls, made, strict=True):  # nothing can fail any more
            call.request.state = state
        return [{"audio": samples} if samples.numel() else {} for samples, _ in made]

    def _exact(self, calls: Sequence[Call]) -> list[tuple[torch.Tensor, Sounding]]:
        codes = torch.stack([self._frames(_new(call)) for call in calls])  # [calls, frames, groups]
        samples, streams = self.decoder.decode(codes, [call.request.state.stream for call in calls])
        return [(each, Sounding(stream=stream)) for each, stream in zip(samples, streams, strict=True)]

    def _compat(self, call: Call) -> tuple[torch.Tensor, Sounding]:
        state: Sounding = call.request.state
        context, waiting = state.context, (*state.waiting, *_new(call))
        pieces: list[torch.Tensor] = []
        while len(waiting) >= COMPAT_CHUNK or (call.inputs["codes"].final and waiting):
            piece, waiting = waiting[:COMPAT_CHUNK], waiting[COMPAT_CHUNK:]
            decoded = self.decoder.whole(self._frames((*context, *piece)))
            pieces.append(decoded[len(context) * self._frame :])
            context = (*context, *piece)[-COMPAT_CONTEXT:]
        samples = torch.cat(pieces) if pieces else torch.empty(0)
        return samples, Sounding(context=context, waiting=waiting)

    def _frames(self, items: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack([item.to(self._device) for item in items])  # [frames, groups]


def _new(call: Call) -> Sequence[torch.Tensor]:
    """The frames of the call's chunk that were in no earlier one."""
    chunk: Chunk = call.inputs["codes"]
    return chunk.items[chunk.context :]
