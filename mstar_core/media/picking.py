"""Which frames of a clip are kept when not all of them are wanted."""

from __future__ import annotations

from collections.abc import Sequence


def picked(count: int, most: int | None) -> Sequence[int]:
    """The numbers of at most `most` of `count` frames at equal distances, the first and the last among them.

    All of them when `most` is None or not less than `count`; of one the first. `most` is at least 1.
    """
    if most is None or most >= count:
        return range(count)
    steps = max(most - 1, 1)
    return [(2 * index * (count - 1) + steps) // (2 * steps) for index in range(most)]  # rounded half up


def thinned(rate: float, count: int, kept: int) -> float:
    """The frames a second of `kept` of `count` frames, as `picked` chooses them, of a clip of `rate`."""
    return rate * (kept - 1) / (count - 1) if kept > 1 else rate / count
