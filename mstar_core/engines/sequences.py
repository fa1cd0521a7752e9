"""Named sequences of cached tokens, several per request, made of pages that forks share.

Pure bookkeeping on the loop thread. What has to happen to the pages' contents (a shared page copied before it is
written) is returned as (from, to) pairs; the engine carries these out on the device, in order, before the step that
needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mstar_core.engines.pages import PageAllocator

PageCopy = tuple[int, int]
"""(source page, destination page)."""


@dataclass(slots=True)
class CachedSequence:
    """Tokens in the cache, in order: `length` of them on `pages`, and the position id that the next one gets."""

    pages: list[int] = field(default_factory=list)
    length: int = 0
    position: float = 0
    _table: npt.NDArray[np.int64] | None = None

    def table(self) -> npt.NDArray[np.int64]:
        """The pages as an array (kept until they change)."""
        if self._table is None or len(self._table) != len(self.pages):
            self._table = np.asarray(self.pages, np.int64)
        return self._table

    def changed(self) -> None:
        """Forget the array; called after a change of `pages`."""
        self._table = None


class SequenceStore:
    """All sequences of all open requests on one pool."""

    def __init__(self, allocator: PageAllocator, page_size: int) -> None:
        self.allocator = allocator
        self.page_size = page_size
        self._requests: dict[int, dict[str, CachedSequence]] = {}
        self._kept: list[CachedSequence] = []

    def open(self, request: int) -> None:
        """Start a request without sequences."""
        assert request not in self._requests, f"request {request} is open already"
        self._requests[request] = {}

    def close(self, request: int) -> None:
        """Free every sequence of a request."""
        for sequence in self._requests.pop(request).values():
            self.allocator.release(sequence.pages)

    def clear(self, request: int) -> None:
        """Free every sequence of a request that stays open."""
        for name in self.names(request):
            self.free(request, name)

    def get(self, request: int, name: str) -> CachedSequence:
        """A request's sequence; an empty one appears on first use."""
        return self._requests[request].setdefault(name, CachedSequence())

    def names(self, request: int) -> tuple[str, ...]:
        """The names of a request's sequences."""
        return tuple(self._requests[request])

    def sequences(self, request: int) -> dict[str, CachedSequence]:
        """A request's sequences by name."""
        return dict(self._requests[request])

    def pages_for(self, tokens: int) -> int:
        """How many pages hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def needed(self, request: int, name: str, tokens: int) -> int:
        """How many pages `append` would take now."""
        sequence = self.get(request, name)
        fresh = self.pages_for(sequence.length + tokens) - len(sequence.pages)
        return max(fresh, 0) + int(tokens > 0 and self._tail_is_shared(sequence))

    def append(self, request: int, name: str, tokens: int) -> list[PageCopy]:
        """Make room for `tokens` more tokens; raises `OutOfPages`, and changes nothing, when there is none.

        Positions are the caller's: `position` stays as it is.
        """
        sequence = self.get(request, name)
        copy_tail = tokens > 0 and self._tail_is_shared(sequence)
        taken = self.allocator.allocate(self.needed(request, name, tokens))
        copies: list[PageCopy] = []
        if copy_tail:
            copies = [(sequence.pages[-1], taken[0])]
            self.allocator.release(sequence.pages[-1:])
            sequence.pages[-1] = taken.pop(0)
        sequence.pages += taken
        sequence.length += tokens
        sequence.changed()
        return copies

    def truncate(self, request: int, name: str, length: int) -> None:
        """Forget the tokens from `length` on; the position id of the next token is the caller's."""
        sequence = self.get(request, name)
        assert 0 <= length <= sequence.length, f"{name}: cannot cut {sequence.length} tokens to {length}"
        keep = self.pages_for(length)
        self.allocator.release(sequence.pages[keep:])
        del sequence.pages[keep:]
        sequence.length = length
        sequence.changed()

    def fork(self, request: int, source: str, target: str) -> None:
        """Let `target` hold what `source` holds, sharing its pages; what `target` held before is freed."""
        original = self.get(request, source)
        if source == target:
            return
        self.allocator.share(original.pages)
        self.replace(request, target, CachedSequence(list(original.pages), original.length, original.position))

    def free(self, request: int, name: str) -> None:
        """Free one sequence."""
        self.allocator.release(self._requests[request].pop(name).pages)

    def replace(self, request: int, name: str, sequence: CachedSequence | None) -> None:
        """Put a sequence (whose pages are already counted) in place of another, which is freed; None only frees."""
        if name in self._requests[request]:
            self.free(request, name)
        if sequence is not None:
            self._requests[request][name] = sequence

    def keep(self, sequence: CachedSequence) -> CachedSequence:
        """A nameless copy that holds the same pages until it is given to `restore` or `let_go`."""
        self.allocator.share(sequence.pages)
        copy = CachedSequence(list(sequence.pages), sequence.length, sequence.position)
        self._kept.append(copy)
        return copy

    def let_go(self, kept: CachedSequence) -> None:
        """Free what `keep` made."""
        self._forget(kept)
        self.allocator.release(kept.pages)

    def restore(self, request: int, name: str, kept: CachedSequence) -> None:
        """Put back what `keep` saved."""
        self._forget(kept)
        self.replace(request, name, kept)

    def held(self, request: int) -> int:
        """The distinct pages that a request holds."""
        return len({page for sequence in self._requests[request].values() for page in sequence.pages})

    def check_integrity(self) -> None:
        """Raise AssertionError unless page counts, page lists and lengths agree."""
        self.allocator.check_integrity([sequence.pages for sequence in self._everything()])
        for sequence in self._everything():
            wanted = self.pages_for(sequence.length)
            assert len(sequence.pages) == wanted, f"{sequence.length} tokens on {len(sequence.pages)} pages"
            assert list(sequence.table()) == sequence.pages, "a stale page table"

    def _everything(self) -> Iterator[CachedSequence]:
        for sequences in self._requests.values():
            yield from sequences.values()
        yield from self._kept

    def _tail_is_shared(self, sequence: CachedSequence) -> bool:
        partial = sequence.length % self.page_size != 0
        return partial and self.allocator.shared(sequence.pages[-1])

    def _forget(self, kept: CachedSequence) -> None:
        self._kept = [other for other in self._kept if other is not kept]
