"""Long text in segments: cut at sentences where possible, spoken in order, no character lost."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

SEGMENT_BYTES = 300
"""UTF-8 bytes of a segment: about 20 s of speech in most scripts, since those with many bytes to a character say more
with it. The released model skips words in texts beyond 40 to 60 s (canopyai/Orpheus-TTS, issue 195)."""

_ABBREVIATIONS = frozenset(
    {"mr", "mrs", "ms", "dr", "prof", "st", "vs", "e.g", "i.e", "no", "jr", "sr", "fig", "approx"}
)

_BORDER = re.compile(r"(?P<end>[.!?…؟۔।]+[\"'”’)\]»]*)\s+|[。！？]+[”’」』）]*\s*|\n\s*")
"""The end of a sentence with the space behind it, or of a line. A decimal point has no space behind it."""

_TAG = re.compile(r"<[^<>\s]{1,24}>")
"""What the model may read as an emotion tag (`<laugh>`)."""

_JOINERS = frozenset("\u200d")
"""A zero width joiner ties its neighbours together, as in emoji of several parts."""


def segments(text: str, limit: int = SEGMENT_BYTES) -> list[str]:
    """Pieces of at most `limit` UTF-8 bytes (at least 4) that give `text` when joined; one piece for a short text."""
    pieces: list[str] = []
    room = 0
    for sentence in _sentences(text):
        for part in _parts(sentence, limit):
            size = len(part.encode())
            if size <= room:
                pieces[-1] += part
                room -= size
            else:
                pieces.append(part)
                room = limit - size
    return pieces


def speakable(text: str) -> bool:
    """Whether anything but spaces and control characters is in a text."""
    return any(unicodedata.category(character)[0] not in "CZ" for character in text)


def _sentences(text: str) -> Iterator[str]:
    """Sentences with the space that follows them."""
    start = 0
    for border in _BORDER.finditer(text):
        if border["end"] and _goes_on(text, start, border):
            continue
        yield text[start : border.end()]
        start = border.end()
    if start < len(text):
        yield text[start:]


def _goes_on(text: str, start: int, border: re.Match[str]) -> bool:
    """Whether a small letter follows, or the period belongs to an abbreviation or an initial."""
    if text[border.end() : border.end() + 1].islower():
        return True
    words = text[max(start, border.start() - 16) : border.start()].split()
    word = words[-1].lower().lstrip("(\"'“‘") if words else ""
    initial = len(word) == 1 and word.isalpha() and word != "i"
    return border["end"] == "." and (word in _ABBREVIATIONS or initial)


def _parts(sentence: str, limit: int) -> Iterator[str]:
    """A sentence cut to the limit: behind its last space if there is one, else wherever nothing is torn apart."""
    start = 0
    while start < len(sentence):
        stop = _reach(sentence, start, limit)
        if stop < len(sentence):
            space = max(sentence.rfind(blank, start + 1, stop) for blank in " \n\t")
            stop = space + 1 if space > 0 else _whole(sentence, start, stop)
        yield sentence[start:stop]
        start = stop


def _reach(text: str, start: int, limit: int) -> int:
    """Where the longest piece from `start` on ends that has at most `limit` bytes."""
    stop = start
    while stop < len(text) and (limit := limit - len(text[stop].encode())) >= 0:
        stop += 1
    return max(stop, start + 1)


def _whole(text: str, start: int, stop: int) -> int:
    """The last place up to `stop` that is in no tag and parts no character from its marks; `stop` if there is none."""
    tag = _TAG.match(text, max(text.rfind("<", start, stop), start))
    place = tag.start() if tag is not None and tag.end() > stop else stop
    while place > start and _tied(text, place):
        place -= 1
    return place if place > start else stop


def _tied(text: str, place: int) -> bool:
    """Whether the characters on both sides of a place are one on the page."""
    before, behind = text[place - 1], text[place]
    return unicodedata.category(behind)[0] == "M" or before in _JOINERS or behind in _JOINERS
