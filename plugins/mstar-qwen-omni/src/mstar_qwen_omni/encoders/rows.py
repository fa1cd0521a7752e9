"""How many rows the audio tower makes of a sound. Torch-free: the processor counts them, too."""

from __future__ import annotations


def steps_of(frames: int) -> int:
    """Steps that three convolutions of stride 2 make of a chunk."""
    for _ in range(3):
        frames = (frames + 1) // 2
    return frames


def rows_of(frames: int, chunk: int) -> int:
    """Rows that a sound of so many frames becomes: those of its whole chunks and of the rest."""
    return frames // chunk * steps_of(chunk) + steps_of(frames % chunk)
