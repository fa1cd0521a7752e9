"""From audio ids to frames of codes, one id at a time. Torch-free; runs where the language model's ids arrive.

Audio id = audio_base + slot * codebook_size + code. A frame is one id of every slot, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mstar_orpheus.codec.config import SnacConfig

Frame = tuple[int, ...]
"""One frame's codes, by slot."""


class FrameParser:
    """Collects audio ids into frames and finds its way back after an id of the wrong slot.

    Ids outside the audio range (special and text ids) are skipped wherever they stand: ending at end-of-speech is the
    caller's business. An id of the wrong slot drops the frame under way, and parsing goes on at the next id of slot 0,
    which may be that very id; so one wrong, missing or surplus id costs at most one frame. A frame that is not
    complete when the ids end is never given out.
    """

    def __init__(self, config: SnacConfig, audio_base: int) -> None:
        self._base = audio_base
        self._codebook_size = config.codebook_size
        self._slots = config.ids_per_frame
        self._codes: list[int] = []
        self._lost = False
        self.frames = 0
        """Frames finished so far."""
        self.violations = 0
        """Ids so far that stood where another slot's id was due, while the parser was in step."""

    @property
    def pending(self) -> int:
        """Ids of the frame under way."""
        return len(self._codes)

    @property
    def audio_ids(self) -> range:
        """The ids that carry codes; all others are skipped."""
        return range(self._base, self._base + self._slots * self._codebook_size)

    def push(self, audio_id: int) -> Frame | None:
        """Takes one id; gives the frame that it finished, if it did."""
        if audio_id not in self.audio_ids:
            return None
        slot, code = divmod(audio_id - self._base, self._codebook_size)
        if slot != len(self._codes):
            self._drop()
            if slot:
                return None
        self._lost = False
        self._codes.append(code)
        return self._finish() if len(self._codes) == self._slots else None

    def restart(self) -> None:
        """Drops the frame under way: the ids of another text follow, from slot 0 on."""
        self._codes.clear()
        self._lost = False

    def pack(self) -> dict[str, Any]:
        """Where the parser stands, in plain values."""
        return {"codes": list(self._codes), "lost": self._lost, "frames": self.frames, "violations": self.violations}

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Go on where another parser of the same layout stood when it was packed."""
        self._codes = list(packed["codes"])
        self._lost = packed["lost"]
        self.frames = packed["frames"]
        self.violations = packed["violations"]

    def extend(self, audio_ids: Iterable[int]) -> list[Frame]:
        """Takes several ids; gives the frames that they finished."""
        frames = (self.push(audio_id) for audio_id in audio_ids)
        return [frame for frame in frames if frame is not None]

    def _drop(self) -> None:
        """Drops the frame under way; counts the slip once, not every id until the next slot 0."""
        self.violations += not self._lost
        self._lost = True
        self._codes.clear()

    def _finish(self) -> Frame:
        frame = tuple(self._codes)
        self._codes.clear()
        self.frames += 1
        return frame


def frame_to_levels(frame: Sequence[int], slot_levels: Sequence[int]) -> list[list[int]]:
    """The codes of one frame by level, coarsest first, each in time order: slots 0 | 1, 4 | 2, 3, 5, 6."""
    levels: list[list[int]] = [[] for _ in range(max(slot_levels) + 1)]
    for code, level in zip(frame, slot_levels, strict=True):
        levels[level].append(code)
    return levels
