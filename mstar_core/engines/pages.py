"""Pages of KV cache: who holds which, counted, so that sequences can share them.

A page is a fixed number of consecutive token slots, in every layer's pool at once; here it is only a number. Page 0
is never handed out: padded rows of a batch write there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

NULL_PAGE = 0
"""The page that padding writes to and reads from; no sequence ever holds it."""


class OutOfPages(Exception):
    """More pages were asked for than are free. The engine lets the call wait; no client sees this."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"{wanted} pages wanted, {free} free")
        self.wanted = wanted


class PageAllocator:
    """Hands out the pages 1 to `pages`, each with a count of its holders; used by the loop thread alone."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._free = list(range(pages, NULL_PAGE, -1))
        self._holders = [0] * (pages + 1)

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.pages - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """`count` pages with one holder each; raises `OutOfPages`, and takes none, when fewer are free."""
        if count > len(self._free):
            raise OutOfPages(count, len(self._free))
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._holders[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """Count one more holder of each page."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free and cannot be shared"
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Count one holder less of each page; a page without holders is free again.

        The first of them will be taken again first, so that what lay side by side does so the next time.
        """
        for page in reversed(tuple(pages)):
            assert self._holders[page] > 0, f"page {page} was released once too often"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free.append(page)

    def shared(self, page: int) -> bool:
        """Whether more than one sequence holds the page, so that it must be copied before it is written."""
        return self._holders[page] > 1

    def check_integrity(self, held: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless the counts are exactly those of `held`, the page lists of all holders."""
        counted = Counter(page for pages in held for page in pages)
        assert NULL_PAGE not in counted, "a sequence holds the null page"
        for page in range(1, self.pages + 1):
            count = self._holders[page]
            assert count == counted[page], f"page {page} counts {count} holders, {counted[page]} hold it"
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        unheld = {page for page in range(1, self.pages + 1) if self._holders[page] == 0}
        assert free == unheld, f"free pages {sorted(free ^ unheld)} disagree with the counts"
