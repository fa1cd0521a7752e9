"""What a client said and showed, checked and counted in tokens before anything is made of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mstar_core.errors import InvalidRequest
from mstar_core.media.resample import resample
from mstar_core.spec.content import MODALITIES, Audio, Content, Image, Role, Tensor, Text, Video
from mstar_qwen_omni.encoders.rows import rows_of
from mstar_qwen_omni.media.frames import seen
from mstar_qwen_omni.media.mel import Samples, frame_count
from mstar_qwen_omni.media.patches import FRAME_MAX_PIXELS, FRAME_MIN_PIXELS, Pixels, fitted
from mstar_qwen_omni.media.settings import MediaSettings
from mstar_qwen_omni.prompt import Film, Piece, Sound, Still, Turn, Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """How a request wants its media: sounds padded to the longest (`compat`), the sound of clips heard with them
    (`with_clips`), and so many frames a second of clips seen (`fps`)."""

    compat: bool
    with_clips: bool
    fps: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conversation:
    """Turns in the client's order; what one role says and shows in a row is one turn.

    `sounds` float32 [samples] at the rate that is heard, and `sights`, pictures uint8 [height, width, 3] and clips
    uint8 [frames, height, width, 3], are in the order of the prompt. Sounds are heard padded to `padded` samples.
    """

    turns: tuple[Turn, ...]
    sounds: tuple[Samples, ...]
    sights: tuple[Pixels, ...]
    padded: int | None


def read_conversation(
    content: Sequence[Content], hearing: Hearing, settings: MediaSettings, chunk: int
) -> Conversation:
    """Check a request's content and count it; `chunk` are the frames that the audio tower convolves together.

    Raises `InvalidRequest` that names the field.
    """
    sounds = tuple(_heard(sound, settings) for piece in content if (sound := _sound_of(piece, hearing)))
    padded = max(map(len, sounds)) if sounds and hearing.compat else None
    counts = (rows_of(frame_count(len(sound), settings.sound, padded), chunk) for sound in sounds)
    counter = _Counter(hearing, settings, counts)
    turns = []
    for role, pieces in itertools.groupby(content, key=_role):
        turns.append(Turn(role, tuple(_joined(counter.piece(piece) for piece in pieces))))
    _check_not_blank(turns)
    return Conversation(turns=tuple(turns), sounds=sounds, sights=tuple(counter.sights), padded=padded)


@dataclass(slots=True)
class _Counter:
    """Contents to pieces of the prompt; `rows` are those of the sounds that are still to come."""

    hearing: Hearing
    settings: MediaSettings
    rows: Iterator[int]
    sights: list[Pixels] = field(default_factory=list)

    def piece(self, content: Content) -> Piece:
        """One piece; pictures and the chosen frames of clips are put down in `sights`."""
        match content:
            case Text(text):
                return Words(_whole(text))
            case Audio():
                return Sound(next(self.rows))
            case Image(pixels):
                self.sights.append(_checked_pixels(pixels, 3))
                picture = self.settings.picture
                return Still(*self._tokens(pixels, picture.min_pixels, picture.max_pixels))
            case Video():
                return self._film(content)
        kind = MODALITIES.get(type(content), type(content).__name__)
        raise InvalidRequest(f"'input' holds {kind}; text, images, audio and videos are taken", param="input")

    def _film(self, video: Video) -> Film:
        frames = _checked_pixels(video.frames, 4)
        if not (math.isfinite(video.rate) and video.rate > 0):
            raise InvalidRequest(f"a video of {video.rate} frames a second cannot be read", param="input")
        depth = self.settings.picture.frames
        chosen = seen(video, self.hearing.fps, depth)
        self.sights.append(chosen.frames)
        rows, columns = self._tokens(frames[0], FRAME_MIN_PIXELS, FRAME_MAX_PIXELS)
        sound = next(self.rows) if _sound_of(video, self.hearing) else 0
        return Film(-(-len(chosen.frames) // depth), rows, columns, chosen.seconds, sound)

    def _tokens(self, pixels: Pixels, fewest: int, most: int) -> tuple[int, int]:
        """Rows and columns of tokens of a picture."""
        picture = self.settings.picture
        height, width = fitted(pixels.shape[0], pixels.shape[1], picture, fewest, most)
        return height // picture.side, width // picture.side


def _role(content: Content) -> Role:
    return "user" if isinstance(content, Tensor) else content.role  # a tensor is refused when it is counted


def _sound_of(content: Content, hearing: Hearing) -> Audio | None:
    """The sound that a content brings."""
    match content:
        case Audio():
            return content
        case Video(audio=sound) if hearing.with_clips:
            return sound
    return None


def _heard(sound: Audio, settings: MediaSettings) -> Samples:
    """A sound's samples at the rate that is heard."""
    samples: NDArray[np.float32] = sound.samples
    if samples.dtype != np.float32 or samples.ndim != 1 or not np.isfinite(samples).all():
        problem = f"finite float32 [samples]; got {samples.dtype} {list(samples.shape)}"
        raise InvalidRequest(f"'input' holds audio that is not {problem}", param="input")
    heard = resample(samples, sound.rate, settings.sound.rate)
    if len(heard) < settings.sound.hop:
        least = 1000 * settings.sound.hop / settings.sound.rate
        raise InvalidRequest(
            f"'input' holds audio of {1000 * len(samples) / sound.rate:g} ms; at least {least:g} ms are needed",
            param="input",
        )
    return heard


def _checked_pixels(pixels: Pixels, axes: int) -> Pixels:
    if pixels.dtype != np.uint8 or pixels.ndim != axes or pixels.shape[-1] != 3 or not pixels.size:
        wanted = ["height", "width", "3"] if axes == 3 else ["frames", "height", "width", "3"]
        raise InvalidRequest(
            f"'input' holds a picture of {pixels.dtype} {list(pixels.shape)}; uint8 [{', '.join(wanted)}] is taken",
            param="input",
        )
    return pixels


def _joined(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Neighbouring words as one, as the chat template puts them together; none that are empty."""
    for is_words, run in itertools.groupby(pieces, key=lambda piece: isinstance(piece, Words)):
        if not is_words:
            yield from run
        elif text := "".join(piece.text for piece in run if isinstance(piece, Words)):
            yield Words(text)


def _whole(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"'input' holds half a character at position {error.start}", param="input") from error
    return text


def _check_not_blank(turns: Sequence[Turn]) -> None:
    """Raise `InvalidRequest` unless the user said or showed something."""
    pieces = (piece for turn in turns if turn.role == "user" for piece in turn.pieces)
    if not any(not isinstance(piece, Words) or piece.text.strip() for piece in pieces):
        raise InvalidRequest("'input' holds nothing from the user that could be answered", param="input")
