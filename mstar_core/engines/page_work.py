"""What the device does to pages before a step, queued in the order in which the loop thread decided it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mstar_core.engines.attention.base import AttentionBackend
from mstar_core.engines.pages import NULL_PAGE
from mstar_core.engines.parking import Parked
from mstar_core.engines.sequences import PageCopy

Work = Callable[[], None]


class PageWork:
    """A queue of device operations. Neighbours of one kind become one operation where that changes nothing."""

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend
        self._done: list[Work] = []
        self._clears: list[int] = []
        self._copies: list[PageCopy] = []

    def clear(self, page: int) -> None:
        """Zero a page."""
        assert page != NULL_PAGE
        self._end_copies()
        self._clears.append(page)

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages."""
        for source, target in copies:
            self._end_clears()
            if any(source == written or target in (read, written) for read, written in self._copies):
                self._end_copies()
            self._copies.append((source, target))

    def save(self, parked: Parked, pages: Sequence[int]) -> None:
        """Copy pages to the host."""

        def work() -> None:
            parked.contents = self._backend.save_pages(pages)

        if pages:
            self.then(work)

    def load(self, parked: Parked, pages: Sequence[int]) -> Work:
        """Copy what was saved back to other pages, before what is queued from now on."""

        def work() -> None:
            if pages:
                assert parked.contents is not None
                self._backend.load_pages(pages, parked.contents)

        self.then(work)
        return work

    def take_back(self, work: Work) -> None:
        """Do not do what was just queued."""
        self._done.remove(work)

    def then(self, work: Work) -> None:
        """Any other operation."""
        self._end_clears()
        self._end_copies()
        self._done.append(work)

    def take(self) -> list[Work]:
        """Everything queued so far; the queue is empty afterwards."""
        self._end_clears()
        self._end_copies()
        taken, self._done = self._done, []
        return taken

    def _end_clears(self) -> None:
        if self._clears:
            pages, self._clears = self._clears, []
            self._done.append(lambda: self._backend.clear_pages(pages))

    def _end_copies(self) -> None:
        if self._copies:
            copies, self._copies = self._copies, []
            self._done.append(lambda: self._backend.copy_pages(copies))
