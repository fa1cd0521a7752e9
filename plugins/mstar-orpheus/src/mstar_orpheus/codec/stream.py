"""Streaming decode: chunks of frames in, samples out, nothing kept between calls.

Two modes. `decode_exact` gives what decoding the whole stream at once gives: every sample is emitted once its whole
receptive field is known, and the final chunk flushes the rest. `decode_compat` gives what the reference streaming loop
gives (canopyai/Orpheus-TTS, `orpheus_tts/decoder.py`): every frame from the fourth on ends an isolated window of four
frames of which the second frame's samples are kept, so frame 0 and the last two are never heard.

Context is decoded again for every chunk rather than kept as layer states. Since no layer computes more rows than the
wanted samples need, that costs little: an exact chunk of 8 new frames multiplies 1.07 times what one long decode would
per frame, of 4 frames 1.15 times, of 2 frames 1.30 times, of 1 frame 1.59 times; a compat window 1.54 times instead
of 4.

Both are pure functions of the chunks, both run the windows of many requests in one call, and a chunk's samples are the
same bits whichever other chunks stand beside it. Called by the decode node, in its worker.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mstar_orpheus.codec.chunks import COMPAT_FRAME, COMPAT_WINDOW, compat_windows, samples_of_chunk
from mstar_orpheus.codec.config import SnacConfig
from mstar_orpheus.codec.decoder import SnacDecoder
from mstar_orpheus.codec.noise import position_noise
from mstar_orpheus.codec.reach import Rows, plan_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One request's next run of frames."""

    codes: Tensor
    """int64 [frames, slots], context first; slots in the order of the audio ids."""
    position: int
    """Absolute index of the first frame."""
    context: int
    """How many leading frames were new in an earlier chunk."""
    final: bool
    """Whether the stream ends here; only then may there be no new frame."""
    seed: int | None = None
    """The request's noise seed; None leaves the noise out. The same for all chunks of a stream."""


def decode_exact(decoder: SnacDecoder, chunks: Sequence[Chunk]) -> list[Tensor]:
    """The samples that each chunk makes final: float32 [samples], on the decoder's device; empty if there are none.

    Raises ValueError if a chunk has less context than `context_frames(config)` and is not its stream's beginning.
    """
    windows = [_exact_window(decoder.config, chunk) for chunk in chunks]
    return [torch.cat(samples) for samples in _decode_all(decoder, windows)]


def decode_compat(decoder: SnacDecoder, chunks: Sequence[Chunk]) -> list[Tensor]:
    """The samples of each chunk's new frames as the reference loop gives them: float32, one frame per window.

    Raises ValueError if a chunk has less context than `COMPAT_CONTEXT` and is not its stream's beginning.
    """
    windows = [_compat_windows(decoder.config, chunk) for chunk in chunks]
    return [torch.cat(samples) for samples in _decode_all(decoder, windows)]


def decode_windows(
    decoder: SnacDecoder,
    codes: Tensor,
    positions: Sequence[int],
    seeds: Sequence[int] | None = None,
    samples: Rows | None = None,
) -> Tensor:
    """Decodes isolated windows of one length: codes int64 [batch, frames, slots] -> float32 [batch, samples].

    `positions` are the absolute indices of the windows' first frames and key the noise of `seeds`; without seeds there
    is none. `samples` is the wanted range within the window (default: all of it); no layer computes more than that
    needs. Raises ValueError for codes that are not in the codebook.
    """
    config, device = decoder.config, decoder.device
    _check_codes(config, codes)
    frames = codes.shape[1]
    wanted = Rows(0, frames * config.samples_per_frame) if samples is None else samples
    rows = plan_rows(config, frames * config.latents_per_frame, wanted)
    noise = None
    if seeds is not None:
        per_frame = _rows_per_frame(config)
        made = [block.upsampled for block in rows.blocks]
        starts = [[p * n + r.start for p in positions] for n, r in zip(per_frame, made, strict=True)]
        noise = [n.to(decoder.dtype) for n in position_noise(seeds, starts, [len(r) for r in made], device)]
    latents = decoder.from_codes(codes_to_levels(codes.to(device), config))
    decoded: Tensor = decoder(latents, noise, wanted)
    return decoded.float()


def codes_to_levels(codes: Tensor, config: SnacConfig) -> list[Tensor]:
    """Codes by frame and slot [batch, frames, slots] -> by level, coarsest first, [batch, frames * codes of level]."""
    slots = [[s for s, of in enumerate(config.slot_levels) if of == level] for level in range(len(config.vq_strides))]
    return [codes[..., chosen].flatten(1) for chosen in slots]


def to_pcm16(samples: Tensor) -> Tensor:
    """Samples between -1 and 1 -> int16, as the reference loop does it: 32767 x, cut towards zero."""
    return (samples * 32767).to(torch.int16)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Frames to decode in isolation and the samples of them to keep. Equal `shape`s can share a call."""

    codes: Tensor  # [frames, slots]
    position: int
    seed: int | None
    keep: Rows

    @property
    def shape(self) -> tuple[int, Rows, bool]:
        return self.codes.shape[0], self.keep, self.seed is None


def _exact_window(config: SnacConfig, chunk: Chunk) -> list[_Window]:
    keep = samples_of_chunk(config, chunk.position, chunk.context, chunk.codes.shape[0], chunk.final)
    window = _Window(codes=chunk.codes, position=chunk.position, seed=chunk.seed, keep=keep)
    return [window] if len(keep) else []


def _compat_windows(config: SnacConfig, chunk: Chunk) -> list[_Window]:
    frame = config.samples_per_frame
    keep = Rows(COMPAT_FRAME * frame, (COMPAT_FRAME + 1) * frame)
    return [
        _Window(
            codes=chunk.codes[first : first + COMPAT_WINDOW],
            position=chunk.position + first,
            seed=chunk.seed,
            keep=keep,
        )
        for first in compat_windows(chunk.position, chunk.context, chunk.codes.shape[0])
    ]


def _decode_all(decoder: SnacDecoder, windows: list[list[_Window]]) -> list[list[Tensor]]:
    """Decodes every chunk's windows, those of one shape in one call."""
    samples = [[decoder.codebooks[0].new_empty(0, dtype=torch.float32)] for _ in windows]
    together: dict[tuple[int, Rows, bool], list[tuple[int, _Window]]] = defaultdict(list)
    for index, of_chunk in enumerate(windows):
        for window in of_chunk:
            together[window.shape].append((index, window))
    for group in together.values():
        decoded = _decode_group(decoder, [window for _, window in group])
        for (index, _), row in zip(group, decoded, strict=True):
            samples[index].append(row)
    return samples


def _decode_group(decoder: SnacDecoder, windows: list[_Window]) -> Tensor:
    seeds = [window.seed for window in windows if window.seed is not None]
    return decode_windows(
        decoder,
        torch.stack([window.codes for window in windows]),
        [window.position for window in windows],
        seeds or None,
        windows[0].keep,
    )


def _rows_per_frame(config: SnacConfig) -> list[int]:
    """Rows that each block makes per frame."""
    rates = config.decoder_rates
    return [config.latents_per_frame * math.prod(rates[: index + 1]) for index in range(len(rates))]


def _check_codes(config: SnacConfig, codes: Tensor) -> None:
    """Codes on the host are checked; on an accelerator a check would wait for it."""
    if codes.dim() != 3 or codes.shape[2] != config.ids_per_frame or not codes.numel():
        raise ValueError(f"codes must be [batch, frames, {config.ids_per_frame}], found {list(codes.shape)}")
    if codes.device.type == "cpu" and not 0 <= int(codes.min()) <= int(codes.max()) < config.codebook_size:
        raise ValueError(
            f"codes must lie between 0 and {config.codebook_size - 1}, found {int(codes.min())} to {int(codes.max())}"
        )
