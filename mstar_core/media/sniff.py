"""What a file is, by its first bytes. Names and suffixes are never trusted, and nothing is guessed by a demuxer."""

from __future__ import annotations

IMAGES = ("jpeg", "png", "webp", "gif")
"""The kinds that are pictures; all but jpeg may be animated."""

_MAGIC = (
    (0, b"fLaC", "flac"),
    (0, b"OggS", "ogg"),
    (0, b"ID3", "mp3"),
    (0, b"\x1a\x45\xdf\xa3", "matroska"),  # EBML, which WebM is too
    (0, b"\xff\xd8\xff", "jpeg"),
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (0, b"GIF8", "gif"),
    (4, b"ftyp", "mov"),  # ISO base media: mp4, m4a, mov
    (4, b"moov", "mov"),  # QuickTime files from before there was an ftyp
    (4, b"mdat", "mov"),
    (4, b"wide", "mov"),
)
"""Offset, bytes and kind."""

_RIFF = {b"WAVE": "wav", b"WEBP": "webp"}


def kind_of(data: bytes) -> str | None:
    """The kind of file, named as FFmpeg's demuxer where it has one; None for anything else."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    for offset, magic, kind in _MAGIC:
        if data[offset : offset + len(magic)] == magic:
            return kind
    if len(data) >= 2 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:  # MPEG sync word; then layer 0 is ADTS
        return "mp3" if data[1] & 0x06 else "aac"
    return None


def first_bytes(data: bytes) -> str:
    """What a message says of bytes that are not what was wanted."""
    return f"they start with {data[:8].hex(' ')}" if data else "there are none"
