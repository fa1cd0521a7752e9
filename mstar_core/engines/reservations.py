"""One call's claim on the cache for one step: slots for its tokens, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mstar_core.engines.page_work import PageWork
from mstar_core.engines.segments import Part, Segment
from mstar_core.engines.sequences import CachedSequence, SequenceStore


@dataclass(frozen=True, slots=True)
class Piece:
    """New tokens of one sequence in one step: where they go, what they see, and their position ids."""

    tokens: int
    pages: npt.NDArray[np.int64]
    cached: int
    causal: bool
    decode: bool
    positions: npt.NDArray[np.generic]  # [tokens] or [axes, tokens]


@dataclass(slots=True)
class _Before:
    """A sequence as it was. `kept` holds its pages where truncation or a fork would have lost them."""

    length: int
    position: float
    kept: CachedSequence | None = None


class Reservation:
    """The slots of one call's tokens in one step.

    Sequences have their new lengths at once, so that the call's next step can be planned before this one has run.
    """

    def __init__(self, store: SequenceStore, work: PageWork, request: int) -> None:
        self.pieces: list[Piece] = []
        self._store = store
        self._work = work
        self._request = request
        self._before: dict[str, _Before | None] = {}
        self._scratch: list[tuple[str, int | None]] = []

    def add(self, part: Part, later: Sequence[Part]) -> None:
        """Claim slots for a part; raises `OutOfPages`, or ValueError for a segment that cannot be, after which only
        `rollback` may follow.

        `later` are the call's following parts.
        """
        segment, name = part.segment, part.segment.sequence
        self._prepare(part)
        if not segment.commit and any(name in (other.segment.sequence, other.segment.fork) for other in later):
            # A later part must not find this one's tokens.
            name = f"{segment.sequence} (scratch {len(self._scratch)})"
            self._store.fork(self._request, segment.sequence, name)
            self._scratch.append((name, None))
        elif not segment.commit:
            self._scratch.append((name, self._store.get(self._request, name).length))
        if part.tokens:
            self._append(part, name)

    def settle(self) -> None:
        """The step happened: nothing needs to be taken back any more."""
        for before in self._before.values():
            if before is not None and before.kept is not None:
                self._store.let_go(before.kept)
        self._before.clear()

    def rollback(self) -> None:
        """Put every sequence back to what it was before."""
        self.release_scratch()
        for name, before in self._before.items():
            self._restore(name, before)
        self._before.clear()

    def release_scratch(self) -> None:
        """Free the slots of uncommitted tokens. The step may still be to run: whoever gets the pages next, writes to
        them after it."""
        for name, length in self._scratch:
            if length is None:
                self._store.free(self._request, name)
            else:
                self._store.truncate(self._request, name, length)
        self._scratch.clear()

    def _prepare(self, part: Part) -> None:
        """Fork and truncate, as the segment's first part says."""
        segment, store = part.segment, self._store
        loses = part.start == 0 and (segment.fork is not None or segment.truncate is not None)
        self._remember(segment.sequence, loses=loses)
        if part.start > 0:
            return
        if segment.fork is not None:
            store.fork(self._request, segment.fork, segment.sequence)
        sequence = store.get(self._request, segment.sequence)
        if segment.truncate is not None:
            if segment.truncate > sequence.length:
                raise ValueError(
                    f"sequence {segment.sequence!r} of {sequence.length} tokens cannot be cut to {segment.truncate}"
                )
            sequence.position -= sequence.length - segment.truncate
            store.truncate(self._request, segment.sequence, segment.truncate)
        if segment.tokens == 0 and segment.next_position is not None:
            sequence.position = segment.next_position

    def _append(self, part: Part, name: str) -> None:
        segment = part.segment
        sequence = self._store.get(self._request, name)
        cached, pages = sequence.length, len(sequence.pages)
        copies = self._store.append(self._request, name, part.tokens)
        self._work.copy(copies)
        if len(sequence.pages) > pages and sequence.length % self._store.page_size:
            self._work.clear(sequence.pages[-1])
        positions = _positions(part, sequence.position)
        if segment.commit:
            sequence.position = _next_position(part, sequence.position)
        self.pieces.append(
            Piece(
                tokens=part.tokens,
                pages=sequence.table(),
                cached=cached,
                causal=segment.mask == "causal",
                decode=segment.tokens == 1,
                positions=positions,
            )
        )

    def _remember(self, name: str, *, loses: bool) -> None:
        store = self._store
        if name not in self._before:
            sequence = store.sequences(self._request).get(name)
            self._before[name] = None if sequence is None else _Before(sequence.length, sequence.position)
        before = self._before[name]
        if loses and before is not None and before.kept is None:
            before.kept = store.keep(store.get(self._request, name))

    def _restore(self, name: str, before: _Before | None) -> None:
        store = self._store
        if before is None:
            store.replace(self._request, name, None)
            return
        if before.kept is not None:
            store.restore(self._request, name, before.kept)
        store.truncate(self._request, name, before.length)
        store.get(self._request, name).position = before.position


def _positions(part: Part, counter: float) -> npt.NDArray[np.generic]:
    given = part.segment.positions
    if given is None:
        return np.arange(part.tokens) + counter
    return np.asarray(given)[..., part.start : part.stop]


def _next_position(part: Part, counter: float) -> float:
    """The counter after a committed part; a segment with positions of its own changes it with its last part."""
    segment: Segment = part.segment
    complete = part.stop == segment.tokens
    if complete and segment.next_position is not None:
        return segment.next_position
    if segment.positions is None:
        return counter + part.tokens
    return float(np.asarray(segment.positions).max()) + 1 if complete else counter
