"""Whether a Matroska or WebM file is whole, which its demuxer does not tell: it ends where the bytes do."""

from __future__ import annotations

_SEGMENT = b"\x18\x53\x80\x67"


def missing_bytes(data: bytes) -> int:
    """How many bytes the file lacks of the length that its segment claims; 0 for one that claims none, as live ones.

    A file is an EBML header and a segment: each an id, a size and so many bytes (RFC 8794, sections 4 to 7; RFC 9559).
    """
    header, start = _size(data, 4)  # behind the EBML header's id
    segment = start + (header or 0)
    if header is None or data[segment : segment + 4] != _SEGMENT:
        return 0
    claimed, body = _size(data, segment + 4)
    return 0 if claimed is None else max(body + claimed - len(data), 0)


def _size(data: bytes, at: int) -> tuple[int | None, int]:
    """The size that stands there, None for unknown, and where its element's data begin."""
    if at >= len(data) or not data[at]:
        return None, at
    length = 9 - data[at].bit_length()  # the number of leading zero bits says how many bytes follow
    number = int.from_bytes(data[at : at + length], "big")
    unknown = (1 << 7 * length) - 1
    value = number & unknown
    return (None if value == unknown else value), at + length
