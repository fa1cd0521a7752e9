"""Histograms, as every party counts them and tells of them in a sample."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from mstar_core.wire.messages import Sample


class Histogram:
    """Values by size: `borders` are the upper ends of the buckets, beside infinity."""

    __slots__ = ("_borders", "_counts", "count", "total")

    def __init__(self, borders: Sequence[float]) -> None:
        self._borders = (*borders, math.inf)
        self._counts = [0] * len(self._borders)
        self.count = 0
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._borders, value)] += 1
        self.count += 1
        self.total += value

    def sample(self, name: str, help: str, labels: dict[str, str]) -> Sample:
        """What was counted."""
        below, buckets = 0, []
        for border, count in zip(self._borders, self._counts, strict=True):
            below += count
            buckets.append((border, below))
        return Sample(name, "histogram", help, labels, self.total, buckets)
