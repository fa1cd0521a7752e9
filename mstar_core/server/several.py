"""Several requests for one HTTP request: the `n` of OpenAI's routes. They run at the same time, or not at all.

The first has the seed that the client gave, each further one the seed after it (2^63 - 1 is followed by 0); so `n` with
the seed s is the same as `n` requests with s, s + 1, ... Without a seed each draws its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from mstar_core import log
from mstar_core.client.service import Service
from mstar_core.client.ticket import Ticket
from mstar_core.server.served import told_as
from mstar_core.spec.content import Content
from mstar_core.spec.params import SEED, SEED_LIMIT

MOST = 8
"""Of one HTTP request."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """`n` requests that differ in their seeds.

    `content` is given up when they are submitted: nobody holds a clip's frames while the answer is made. `params` were
    checked; `fields` names the field of the route by the parameter that it set, for errors of the model.
    """

    model: str
    content: list[Content]
    params: Mapping[str, Any]
    outputs: frozenset[str]
    n: int = 1
    fields: Mapping[str, str]

    def submit(self, service: Service) -> list[Ticket]:
        """Send them on their way, or none when one is refused. Work of the CPU: call it in a thread."""
        tickets: list[Ticket] = []
        try:
            for number in range(self.n):
                tickets.append(self._submit(service, number))
        except BaseException:
            for ticket in tickets:
                ticket.cancel()
            raise
        finally:
            self.content.clear()
        return tickets

    def _submit(self, service: Service, number: int) -> Ticket:
        identity = log.request_id.get()
        if number and identity:
            identity = f"{identity}-{number}"
        with told_as(self.fields):
            return service.submit(
                self.model, list(self.content), self._params(number), outputs=self.outputs, request_id=identity
            )

    def _params(self, number: int) -> Mapping[str, Any]:
        if SEED.name not in self.params:
            return self.params
        return {**self.params, SEED.name: (self.params[SEED.name] + number) % SEED_LIMIT}


async def gathered(calls: Iterable[Coroutine[Any, Any, Item]]) -> list[Item]:
    """The results of calls that run at the same time; when one fails, the others are cancelled and its error raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def merged(sources: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """The items of all sources as they come. Raises the first error; the sources are closed in the end."""
    async with AsyncExitStack() as stack:
        for source in sources:
            await stack.enter_async_context(aclosing(source))
        waiting = {_next(source): source for source in sources}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    source = waiting.pop(task)
                    for item in task.result():
                        waiting[_next(source)] = source
                        yield item
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


def _next(source: AsyncGenerator[Item, None]) -> asyncio.Task[list[Item]]:
    """The source's next item, as a list; an empty one when there is none."""

    async def item() -> list[Item]:
        try:
            return [await anext(source)]
        except StopAsyncIteration:
            return []

    return asyncio.create_task(item())
