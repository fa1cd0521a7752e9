"""Chunk policies: when a stream's consumer runs, and on which items.

A stream is a sequence of items with absolute positions 0, 1, 2, ... A policy turns it into chunks. It is
pure integer arithmetic over a `Cursor`, so the same code serves the validator, the property tests and the worker.

Two rules hold for every policy and every length from 0 up: each item is *new* in exactly one chunk, and exactly
one chunk, the last, is `final` (it may bring no new item). `next_chunk` keeps them; a policy only says where the next
full chunk would stop and which items it keeps afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a consumer stands: `start` is the first item still kept, `seen` the first that was never new."""

    start: int = 0
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """One chunk: items `start` to `stop` (absolute); the first `context` of them were new in an earlier chunk."""

    start: int
    stop: int
    context: int
    final: bool


class ChunkPolicy(ABC):
    """How a stream is cut. Subclasses are frozen dataclasses of integers, so that specs compare and serialise."""

    __slots__ = ()

    @abstractmethod
    def stop(self, cursor: Cursor) -> int:
        """The absolute position where the next full chunk stops; always beyond `cursor.seen`."""

    @abstractmethod
    def keep_from(self, cursor: Cursor, stop: int) -> int:
        """The first item that later chunks still need, once the chunk up to `stop` was handed out."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """The most items one full chunk can hold; a stream's buffer is never smaller."""


@dataclass(frozen=True, slots=True)
class FixedChunkPolicy(ChunkPolicy):
    """Chunks of `size` items, no context."""

    size: int

    def __post_init__(self) -> None:
        _require(self.size >= 1, f"FixedChunkPolicy: size must be at least 1, got {self.size}")

    def stop(self, cursor: Cursor) -> int:
        """One whole chunk beyond what was seen."""
        return cursor.seen + self.size

    def keep_from(self, cursor: Cursor, stop: int) -> int:
        """Nothing is kept."""
        return stop

    @property
    def longest(self) -> int:
        """The chunk itself."""
        return self.size


@dataclass(frozen=True, slots=True)
class SlidingWindowChunkPolicy(ChunkPolicy):
    """Windows of `window` items, each starting `stride` items after the one before."""

    window: int
    stride: int

    def __post_init__(self) -> None:
        _require(
            1 <= self.stride <= self.window,
            f"SlidingWindowChunkPolicy: 1 <= stride <= window must hold, got stride {self.stride}, window {self.window}"
            " (a stride beyond the window would skip items)",
        )

    def stop(self, cursor: Cursor) -> int:
        """The end of the window that starts at the first kept item."""
        return cursor.start + self.window

    def keep_from(self, cursor: Cursor, stop: int) -> int:
        """The next window's start."""
        return min(cursor.start + self.stride, stop)

    @property
    def longest(self) -> int:
        """The window."""
        return self.window


@dataclass(frozen=True, slots=True)
class LeftContextChunkPolicy(ChunkPolicy):
    """`chunk` new items behind up to `left` items of context (fewer while the stream is younger than that)."""

    chunk: int
    left: int

    def __post_init__(self) -> None:
        _require(
            self.chunk >= 1 and self.left >= 0,
            f"LeftContextChunkPolicy: chunk >= 1 and left >= 0 must hold, got chunk {self.chunk}, left {self.left}",
        )

    def stop(self, cursor: Cursor) -> int:
        """One chunk beyond what was seen."""
        return cursor.seen + self.chunk

    def keep_from(self, cursor: Cursor, stop: int) -> int:
        """The last `left` items."""
        return max(stop - self.left, 0)

    @property
    def longest(self) -> int:
        """Context and chunk together."""
        return self.left + self.chunk


@dataclass(frozen=True, slots=True)
class GrowingContextChunkPolicy(ChunkPolicy):
    """Left context with new items per chunk that grow as the client's playback buffer fills.

    `sizes` are the new items of the first, second, ... chunk; the last entry repeats. Early chunks are short, so
    that the first output comes soon; later ones are long, so that the context is recomputed seldom.
    """

    sizes: tuple[int, ...]
    left: int

    def __post_init__(self) -> None:
        _require(
            bool(self.sizes) and min(self.sizes, default=0) >= 1 and self.left >= 0,
            f"GrowingContextChunkPolicy: sizes of at least 1 and left >= 0 needed, got {self.sizes}, left {self.left}",
        )

    def stop(self, cursor: Cursor) -> int:
        """The border after what was seen; borders stand at the running sums of `sizes`."""
        border = 0
        for size in self.sizes:
            border += size
            if border > cursor.seen:
                return border
        return border + self.sizes[-1] * ((cursor.seen - border) // self.sizes[-1] + 1)

    def keep_from(self, cursor: Cursor, stop: int) -> int:
        """The last `left` items."""
        return max(stop - self.left, 0)

    @property
    def longest(self) -> int:
        """Context and the largest chunk together."""
        return self.left + max(self.sizes)


def next_chunk(policy: ChunkPolicy, cursor: Cursor, arrived: int, done: bool) -> tuple[Span, Cursor] | None:
    """The next chunk of a stream and the cursor after it, or None while the consumer has to wait.

    `arrived` counts the items so far; `done` says that no more will come. After a final chunk the caller stops
    asking: the cursor says nothing about finality.
    """
    stop = policy.stop(cursor)
    if arrived < stop:
        if not done:
            return None
        stop = arrived
    span = Span(cursor.start, stop, cursor.seen - cursor.start, final=done and stop == arrived)
    return span, Cursor(policy.keep_from(cursor, stop), stop)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
