"""Stream buffers: one per request and streaming edge, on the consumer's side, bounded by credits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from mstar_core.engines.base import Chunk
from mstar_core.spec.chunks import Cursor, next_chunk
from mstar_core.spec.graph import StreamingEdge

Waiter = Callable[[], None]


class Stream:
    """Items of one edge for one request, cut into chunks by the edge's policy.

    The producer reserves a place (`reserve`) before it runs and then fills it (`push`) or gives it back (`release`),
    so that the buffer never holds more than `capacity` items. `when_ready` and `when_room` keep one waiting party
    each and call it, once, as soon as it can go on.
    """

    __slots__ = ("_arrived", "_consumer", "_cursor", "_done", "_edge", "_ended", "_items", "_producer", "_reserved")

    def __init__(self, edge: StreamingEdge) -> None:
        self._edge = edge
        self._cursor = Cursor()
        self._items: deque[Any] = deque()
        self._arrived = 0
        self._reserved = 0
        self._done = False
        self._ended = False
        self._consumer: Waiter | None = None
        self._producer: Waiter | None = None

    @property
    def buffered(self) -> int:
        """Items held now, context included."""
        return len(self._items)

    @property
    def ended(self) -> bool:
        """Whether the final chunk was taken."""
        return self._ended

    def room(self) -> bool:
        """Whether the producer may run once more."""
        return len(self._items) + self._reserved < self._edge.buffer_items

    def reserve(self) -> None:
        """Claim a place for the item that a run is about to make."""
        self._reserved += 1

    def release(self) -> None:
        """Give a claimed place back: the run made no item."""
        self._reserved -= 1
        self._wake_producer()

    def push(self, item: Any) -> None:
        """Fill a claimed place."""
        self._reserved -= 1
        self._items.append(item)
        self._arrived += 1
        self._wake_consumer()

    def finish(self) -> None:
        """No more items will come."""
        self._done = True
        self._wake_consumer()

    def ready(self) -> bool:
        """Whether `take` would give a chunk now."""
        if self._ended:
            return self._edge.outlives
        return next_chunk(self._edge.policy, self._cursor, self._arrived, self._done) is not None

    def take(self) -> Chunk:
        """The next chunk (`ready` holds).

        After the final one an edge that outlives its producer gives empty final ones.
        """
        if self._ended:
            return Chunk((), 0, self._arrived, final=True)
        cut = next_chunk(self._edge.policy, self._cursor, self._arrived, self._done)
        assert cut is not None, "take() needs ready()"
        span, cursor = cut
        items = tuple(self._items[index] for index in range(span.stop - span.start))
        for _ in range(cursor.start - self._cursor.start):
            self._items.popleft()
        self._cursor, self._ended = cursor, span.final
        self._wake_producer()
        return Chunk(items, span.context, span.start, span.final)

    def when_ready(self, waiter: Waiter) -> None:
        """Call `waiter` once `ready` holds."""
        self._consumer = waiter

    def when_room(self, waiter: Waiter) -> None:
        """Call `waiter` once `room` holds."""
        self._producer = waiter

    def _wake_consumer(self) -> None:
        if self._consumer is not None and self.ready():
            waiter, self._consumer = self._consumer, None
            waiter()

    def _wake_producer(self) -> None:
        if self._producer is not None and self.room():
            waiter, self._producer = self._producer, None
            waiter()
