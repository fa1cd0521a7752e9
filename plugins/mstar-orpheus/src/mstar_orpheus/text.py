"""Long text in segments: cut at sentences where possible, spoken in order, no character lost."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

SEGMENT_CHARACTERS = 300
"""About 20 s of speech. The released model skips words in texts beyond 40 to 60 s (canopyai/Orpheus-TTS, issue 195)."""

_ABBREVIATIONS = frozenset({"mr", "mrs", "ms", "dr", "prof", "st", "vs", "etc", "e.g", "i.e", "no", "jr", "sr"})
_BORDER = re.compile(r"[.!?…。！？]+[\"'”’)\]]*\s+|[。！？]+|\n+\s*")
_TAG = re.compile(r"<[^<>\s]{1,24}>")


def segments(text: str, limit: int = SEGMENT_CHARACTERS) -> list[str]:
    """Pieces of at most `limit` characters that give `text` when joined; one piece for a short text."""
    pieces: list[str] = []
    for sentence in _sentences(text):
        for part in _parts(sentence, limit):
            if pieces and len(pieces[-1]) + len(part) <= limit:
                pieces[-1] += part
            else:
                pieces.append(part)
    return pieces


def speakable(text: str) -> bool:
    """Whether anything but spaces and control characters is in a text."""
    return any(unicodedata.category(character)[0] not in "CZ" for character in text)


def _sentences(text: str) -> Iterator[str]:
    """Sentences with the space that follows them."""
    start = 0
    for border in _BORDER.finditer(text):
        words = text[start : border.start()].split()
        if border.group().startswith(".") and words and words[-1].lower() in _ABBREVIATIONS:
            continue
        yield text[start : border.end()]
        start = border.end()
    if start < len(text):
        yield text[start:]


def _parts(sentence: str, limit: int) -> Iterator[str]:
    """A sentence cut to the limit: behind the last space, else anywhere but inside a tag."""
    while len(sentence) > limit:
        stop = sentence.rfind(" ", 1, limit) + 1 or limit
        for tag in _TAG.finditer(sentence):
            if tag.start() < stop < tag.end() and tag.start() > 0:
                stop = tag.start()
        yield sentence[:stop]
        sentence = sentence[stop:]
    if sentence:
        yield sentence
