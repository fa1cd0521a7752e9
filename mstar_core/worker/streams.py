"""Stream buffers: one per request and streaming edge, on the consumer's side, bounded by credits.

A producer on the consumer's worker fills the buffer itself; one on another worker holds a `StreamSender`, which counts
the credits that the consumer grants. Both ends look the same to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from mstar_core.engines.base import Chunk
from mstar_core.spec.chunks import Cursor, next_chunk
from mstar_core.spec.graph import StreamingEdge

Waiter = Callable[[], None]


class Producing(Protocol):
    """The producer's end of a stream.

    The producer reserves a place (`reserve`) before it runs and then fills it (`push`) or gives it back (`release`).
    `when_room` keeps one waiting party and calls it, once, as soon as there is room.
    """

    def room(self) -> bool:
        """Whether the producer may run once more."""
        ...

    def reserve(self) -> None:
        """Claim a place for the item that a run is about to make."""
        ...

    def release(self) -> None:
        """Give a claimed place back: the run made no item."""
        ...

    def push(self, item: Any) -> None:
        """Fill a claimed place."""
        ...

    def finish(self) -> None:
        """No more items will come."""
        ...

    def when_room(self, waiter: Waiter) -> None:
        """Call `waiter` once `room` holds."""
        ...


class Stream:
    """Items of one edge for one request, cut into chunks by the edge's policy.

    Places are claimed before they are filled (see `Producing`), so that the buffer never holds more than `capacity`
    items. `when_ready` keeps one waiting party and calls it, once, as soon as it can go on. `left` is told how many
    items have left the buffer, which are so many credits for a producer elsewhere.
    """

    __slots__ = (
        "_arrived",
        "_consumer",
        "_cursor",
        "_done",
        "_edge",
        "_ended",
        "_items",
        "_left",
        "_producer",
        "_reserved",
    )

    def __init__(self, edge: StreamingEdge, left: Callable[[int], None] | None = None) -> None:
        self._edge = edge
        self._left = left
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
        leaving = cursor.start - self._cursor.start
        for _ in range(leaving):
            self._items.popleft()
        self._cursor, self._ended = cursor, span.final
        self._wake_producer()
        if self._left is not None and leaving:
            self._left(leaving)
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


class StreamSender:
    """The producer's end of a stream whose buffer is on another worker. `send` sends an item, or None for the end."""

    __slots__ = ("_places", "_producer", "_send")

    def __init__(self, edge: StreamingEdge, send: Callable[[Any], None]) -> None:
        self._places = edge.buffer_items
        self._send = send
        self._producer: Waiter | None = None

    def room(self) -> bool:
        """Whether the producer may run once more."""
        return self._places > 0

    def reserve(self) -> None:
        """Claim a place for the item that a run is about to make."""
        self._places -= 1

    def release(self) -> None:
        """Give a claimed place back: the run made no item."""
        self.credit(1)

    def push(self, item: Any) -> None:
        """Send an item to the place that was claimed for it."""
        self._send(item)

    def finish(self) -> None:
        """No more items will come."""
        self._send(None)

    def credit(self, places: int) -> None:
        """The consumer has room for that many more items."""
        self._places += places
        if self._producer is not None and self.room():
            waiter, self._producer = self._producer, None
            waiter()

    def when_room(self, waiter: Waiter) -> None:
        """Call `waiter` once `room` holds."""
        self._producer = waiter
