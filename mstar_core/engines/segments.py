"""Segments: how a call uses the KV cache, said by the node on the loop thread before anything runs.

All transformer walks are made of them: text decode is one causal, committed token; an image prefill is full and
committed; a denoising step is full and not committed; a planner's candidate is a fork with a full segment of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Positions: TypeAlias = "Sequence[float] | npt.NDArray[Any]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """`tokens` new tokens of one sequence. They see every cached token of it, and each other by `mask`.

    sequence: the name of one of the request's sequences; an unknown one starts empty.
    tokens: how many; 0 only forks or truncates.
    mask: `causal` (a token sees the new ones up to itself) or `full` (it sees all of this segment's).
    commit: whether the tokens stay in the cache. If not, only the segment itself sees them.
    positions: position ids `[tokens]` or `[axes, tokens]` on the host; by default the sequence's counter, going up by
        one per token.
    next_position: the counter afterwards; by default one more than the largest position of the segment. Unchanged by
        a segment that is not committed.
    fork: first make the sequence a fork of this one: same tokens, same counter, pages shared.
    truncate: first cut the sequence to this many tokens; its counter goes down by as many as were cut, unless
        `next_position` or `positions` say otherwise.

    Segments of one call act in order: a later one sees what an earlier one committed to the same sequence.
    """

    tokens: int
    sequence: str = "main"
    mask: Literal["causal", "full"] = "causal"
    commit: bool = True
    positions: Positions | None = None
    next_position: float | None = None
    fork: str | None = None
    truncate: int | None = None

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(f"segment of {self.sequence!r}: tokens must not be negative, got {self.tokens}")
        if self.mask not in ("causal", "full"):
            raise ValueError(f"segment of {self.sequence!r}: mask must be 'causal' or 'full', got {self.mask!r}")
        if self.positions is not None and np.shape(self.positions)[-1:] != (self.tokens,):
            shape = list(np.shape(self.positions))
            raise ValueError(
                f"segment of {self.sequence!r}: positions of shape {shape} do not fit {self.tokens} tokens"
            )

    @property
    def divisible(self) -> bool:
        """Whether a prefill may be cut inside: only where a token does not see later ones."""
        return self.mask == "causal" and self.commit


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens `start` to `stop` of a call's segment number `index`: what one step runs of it."""

    index: int
    segment: Segment
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """How many tokens the step runs."""
        return self.stop - self.start


def cut(segments: Sequence[Segment], done: int, budget: int, *, alone: bool) -> list[Part]:
    """The next parts of a call after `done` tokens, at most `budget` tokens; empty when nothing fits.

    A call is cut only inside causal, committed segments and between segments, and only if all its segments are
    committed: what an uncommitted segment saw would be gone in the next step. What cannot be cut may exceed the budget
    when the call is `alone` in its batch.
    """
    total = sum(segment.tokens for segment in segments)
    if not all(segment.commit for segment in segments) and budget < total:
        budget = total if alone else 0
    parts: list[Part] = []
    stop = 0  # where the segment stops among the call's tokens
    for index, segment in enumerate(segments):
        stop += segment.tokens
        if done > 0 and stop <= done:
            continue
        start = max(segment.tokens - (stop - done), 0)
        wanted = segment.tokens - start
        take = min(wanted, budget) if segment.divisible or wanted <= budget else 0
        if take == 0 and alone and not any(part.tokens for part in parts):
            take = wanted
        if take == 0 and wanted > 0:
            break
        parts.append(Part(index, segment, start, start + take))
        budget -= take
        if take < wanted:
            break
    return parts if any(part.tokens for part in parts) else []
