"""What a streaming decode emits for each chunk of frames. Integers only, torch-free; used by both decode modes.

A chunk is a run of whole frames: `position` is the absolute index of its first frame, its first `context` frames were
already new in an earlier chunk, and the stream's last chunk is `final`. A stream's state is the number of frames seen,
`position + context`, so nothing has to be kept between chunks.
"""

from __future__ import annotations

import math

from mstar_orpheus.codec.config import SnacConfig
from mstar_orpheus.codec.reach import Rows, left_reach, right_reach

COMPAT_WINDOW = 4
"""Frames per window of the reference streaming loop: 28 ids (canopyai/Orpheus-TTS, `orpheus_tts/decoder.py`)."""

COMPAT_CONTEXT = COMPAT_WINDOW - 1
"""Frames of context a compat chunk needs: each new frame ends one window."""

COMPAT_FRAME = 1
"""The frame of a compat window whose samples are kept: samples 2048 to 4096 of 8192."""


def context_frames(config: SnacConfig) -> int:
    """Frames of context that an exact chunk needs (5 for the 24 kHz model).

    The samples held back for lack of right context have to be computed again, and they need their own left context.
    """
    return math.ceil((left_reach(config) + right_reach(config)) / config.samples_per_frame)


def first_audio_frames(config: SnacConfig) -> int:
    """Frames after which an exact stream has its first final sample (3 for the 24 kHz model)."""
    return right_reach(config) // config.samples_per_frame + 1


def samples_of_chunk(config: SnacConfig, position: int, context: int, frames: int, final: bool) -> Rows:
    """The samples, counted from the chunk's own start, that this chunk makes final and no earlier chunk did.

    `frames` counts all of the chunk's frames, context included. Empty until `first_audio_frames` were seen; the final
    chunk gives everything, so that a stream of F frames gives `samples_per_frame * F` samples in all.
    Raises ValueError if the chunk's context is too short for what it has to emit.
    """
    _check_chunk(position, context, frames)
    origin = position * config.samples_per_frame
    seen = (position + context) * config.samples_per_frame
    end = (position + frames) * config.samples_per_frame
    start = max(seen - right_reach(config), 0)
    stop = end if final else max(end - right_reach(config), start)
    if position and start < stop and start - origin < left_reach(config):
        raise ValueError(
            f"the chunk of {frames} frames at frame {position} has {context} frames of context; "
            f"exact decoding needs {context_frames(config)}"
        )
    return Rows(start - origin, stop - origin)


def compat_windows(position: int, context: int, frames: int) -> range:
    """First frames, counted from the chunk's own start, of the windows that end at the chunk's new frames.

    A stream of F frames has F - 3 windows. Raises ValueError if the chunk's context is too short.
    """
    _check_chunk(position, context, frames)
    if position and context < COMPAT_CONTEXT and context < frames:
        raise ValueError(
            f"the chunk of {frames} frames at frame {position} has {context} frames of context; "
            f"compat decoding needs {COMPAT_CONTEXT}"
        )
    first = max(context - COMPAT_CONTEXT, 0)
    return range(first, max(frames - COMPAT_CONTEXT, first))


def _check_chunk(position: int, context: int, frames: int) -> None:
    if position < 0 or not 0 <= context <= frames:
        raise ValueError(
            f"not a chunk: position {position} must be at least 0, context {context} between 0 and frames {frames}"
        )
