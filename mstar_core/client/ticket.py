"""A request as its caller holds it: iterate it for content, in a thread or in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mstar_core.errors import RequestError
from mstar_core.spec.content import PROGRESS, Piece, Progress, Renderer
from mstar_core.wire.messages import Ended

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class End:
    """How a complete request ended: why (`stop`, `length`, ...), and the counts that a client is told."""

    reason: str
    usage: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """One output. `taken` is called, by the reader, when it takes it: more may be made then."""

    modality: str
    array: NDArray[Any]
    taken: Callable[[], None]


_Event: TypeAlias = "Made | Ended | RequestError"


class Ticket:
    """One request. Iterate it once, with `for` or with `async for`; a failed request raises its `RequestError`.

    A request makes no more than some dozens of outputs that were not taken yet (`EMIT_WINDOW`): then it waits for its
    reader. `end` is set once the iteration has ended well. Leaving the iteration early does not cancel: call `cancel`.
    `tokens` are, also of a request that has failed, the KV tokens that the walks appended which had ended by then.
    """

    def __init__(self, request_id: str, renderer: Renderer, cancel: Callable[[], None]) -> None:
        self.id = request_id
        self.end: End | None = None
        self.tokens: Mapping[str, int] = {}
        self._renderer = renderer
        self._cancel = cancel
        self._events: deque[_Event] = deque()
        self._arrived = threading.Condition()
        self._notify: Callable[[], None] | None = None

    @property
    def waiting(self) -> int:
        """How many outputs, or its end, the reader has not taken yet."""
        return len(self._events)

    def cancel(self) -> None:
        """Stop the request and free what it holds; from any thread, any number of times, also after its end."""
        self._cancel()

    async def stop(self) -> Mapping[str, int]:
        """Cancel the request for one that has read enough; the counts that a client is told of what was done.

        Returns once nothing of the request runs any more. For who iterates the ticket in an event loop, in between.
        """
        self.cancel()
        with contextlib.suppress(RequestError):
            async for _ in self:
                pass
        return self.end.usage if self.end else self._renderer.usage(self.tokens)

    def deliver(self, event: _Event) -> None:
        """Called by the frontend: one output, or the end."""
        with self._arrived:
            self._events.append(event)
            self._arrived.notify()
            if self._notify is not None:
                self._notify()

    def __iter__(self) -> Iterator[Piece]:
        """Content as it is made; blocks the calling thread."""
        while self.end is None:
            with self._arrived:
                self._arrived.wait_for(lambda: self._events)
                event = self._events.popleft()
            yield from self._contents(event)

    async def __aiter__(self) -> AsyncGenerator[Piece, None]:
        """Content as it is made, in the running event loop."""
        arrived = asyncio.Event()
        loop = asyncio.get_running_loop()
        with self._arrived:
            self._notify = lambda: _call_soon(loop, arrived.set)
            if self._events:
                arrived.set()
        while self.end is None:
            if not self._events:
                await arrived.wait()
                arrived.clear()
                continue
            for content in self._contents(self._events.popleft()):
                yield content

    def _contents(self, event: _Event) -> Iterator[Piece]:
        if isinstance(event, RequestError):
            raise event
        if isinstance(event, Ended):
            yield from self._renderer.finish()
            self.end = End(event.reason, self._renderer.usage(event.tokens))
            return
        event.taken()
        if event.modality == PROGRESS:
            yield Progress(*event.array.tolist())
            return
        content = self._renderer.output(event.modality, event.array)
        if content is not None:
            yield content


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Call back in the loop, unless it was closed meanwhile: then nobody waits there."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
