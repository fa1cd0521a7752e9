"""The node `snac`: frames to samples, many requests' chunks in one call."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.base import Call, NodeContext
from mstar_core.engines.base import Chunk as StreamChunk
from mstar_core.engines.stateless import StatelessNode
from mstar_core.errors import CheckpointError
from mstar_orpheus.codec.config import SnacConfigError
from mstar_orpheus.codec.decoder import SnacDecoder
from mstar_orpheus.codec.stream import Chunk, decode_compat, decode_exact
from mstar_orpheus.codec.weights import SnacWeightsError
from mstar_orpheus.config import codec_directory

_DECODERS = {"exact": decode_exact, "compat": decode_compat}


class Vocoder(StatelessNode):
    """Decodes each request's chunk in its `decode_mode`, with noise by its seed.

    The codec runs in float32: it is small, and its noise and its comparison with the reference are defined there.
    """

    def __init__(self, context: NodeContext) -> None:
        try:
            self.decoder = SnacDecoder.load(codec_directory(context.checkpoint), device=context.device)
        except (SnacConfigError, SnacWeightsError) as error:
            raise CheckpointError(str(error)) from error
        self._slots = self.decoder.config.ids_per_frame

    def signature(self, call: Call) -> Hashable:
        """Chunks of one mode go together, whatever their length: the decoder groups equal shapes itself."""
        return str(call.request.params["decode_mode"])

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """New samples of each chunk, float32 [samples]; nothing where none are final yet."""
        decode = _DECODERS[calls[0].request.params["decode_mode"]]
        decoded = decode(self.decoder, [self._chunk(call) for call in calls])
        return [{"audio": samples} if samples.numel() else {} for samples in decoded]

    def _chunk(self, call: Call) -> Chunk:
        chunk: StreamChunk = call.inputs["frames"]
        empty = torch.empty(0, self._slots, dtype=torch.int64)
        return Chunk(
            codes=torch.stack(chunk.items) if chunk.items else empty,
            position=chunk.position,
            context=chunk.context,
            final=chunk.final,
            seed=call.request.seed if call.request.params["noise"] else None,
        )
