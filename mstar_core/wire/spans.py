"""Which parts of an arena are free: first fit over a sorted list of free spans that coalesce. Torch-free."""

from __future__ import annotations

from bisect import bisect_left


class Spans:
    """The free spans of `length` units. First fit keeps what is in use, and so the memory touched, at the front."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.free_units = length
        self._starts = [0] if length else []
        self._lengths = [length] if length else []

    def allocate(self, units: int) -> int | None:
        """The first unit of a span that was free, or None when no free span is long enough."""
        assert units > 0
        for index, length in enumerate(self._lengths):
            if length >= units:
                start = self._starts[index]
                if length == units:
                    del self._starts[index], self._lengths[index]
                else:
                    self._starts[index], self._lengths[index] = start + units, length - units
                self.free_units -= units
                return start
        return None

    def free(self, start: int, units: int) -> None:
        """Give a span back that `allocate` gave; it joins its free neighbours."""
        index = bisect_left(self._starts, start)
        self.free_units += units
        joins_next = index < len(self._starts) and start + units == self._starts[index]
        joins_last = index > 0 and self._starts[index - 1] + self._lengths[index - 1] == start
        if joins_next:
            units += self._lengths[index]
            del self._starts[index], self._lengths[index]
        if joins_last:
            self._lengths[index - 1] += units
        else:
            self._starts.insert(index, start)
            self._lengths.insert(index, units)

    def check_integrity(self) -> None:
        """Free spans are sorted, apart from each other and within bounds; their sum is `free_units`."""
        ends = [start + length for start, length in zip(self._starts, self._lengths, strict=True)]
        assert all(end < start for end, start in zip(ends, self._starts[1:], strict=False))
        assert all(length > 0 for length in self._lengths)
        assert not ends or (self._starts[0] >= 0 and ends[-1] <= self.length)
        assert sum(self._lengths) == self.free_units
