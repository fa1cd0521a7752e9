"""From an HTTP request to its tickets: submitted off the event loop, cancelled as soon as the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeAlias, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mstar_core.client.ticket import Ticket
from mstar_core.server.replies import impatient

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

Answer: TypeAlias = Callable[[Ticket, Send], Awaitable[None]]
"""Sends the whole HTTP response of a ticket."""

JointAnswer: TypeAlias = Callable[[Sequence[Ticket], Send], Awaitable[None]]
"""Sends the whole HTTP response of several tickets."""


class TicketsResponse(Response):
    """The response of requests that the service runs at the same time.

    `submit` makes the tickets (in a thread: processors work there); `answer` sends what comes of them. A `RequestError`
    before the status line becomes an error response. The tickets are cancelled when the client leaves, at any time,
    when it takes nothing of the response for `stall_s` seconds, and when the answer ends early.
    """

    def __init__(self, submit: Callable[[], Sequence[Ticket]], answer: JointAnswer, stall_s: float) -> None:
        super().__init__()
        self._submit = submit
        self._answer = answer
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the requests to their end."""
        async with _running(self._submit, receive) as tickets:
            await self._answer(tickets, impatient(send, self._stall_s))


class TicketResponse(TicketsResponse):
    """The response of one request."""

    def __init__(self, submit: Callable[[], Ticket], answer: Answer, stall_s: float) -> None:
        async def answer_one(tickets: Sequence[Ticket], send: Send) -> None:
            await answer(tickets[0], send)

        super().__init__(lambda: [submit()], answer_one, stall_s)


@asynccontextmanager
async def _running(submit: Callable[[], Sequence[Ticket]], receive: Receive) -> AsyncIterator[Sequence[Ticket]]:
    watch = asyncio.create_task(_departure(receive))
    try:
        tickets = await in_thread(submit)
        watch.add_done_callback(lambda watch: None if watch.cancelled() else _cancel(tickets))
        try:
            yield tickets
        finally:
            _cancel(tickets)
    finally:
        watch.cancel()
        await asyncio.wait([watch])


def _cancel(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        if ticket.end is None:
            ticket.cancel()


async def _departure(receive: Receive) -> None:
    """Return when the client has left. The request's body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def in_thread(call: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
    """`asyncio.to_thread`, except that a cancelled caller leaves only when the call has returned.

    So nobody frees an encoder, say, that a thread still works with.
    """
    running = asyncio.ensure_future(asyncio.to_thread(call, *arguments, **named))
    try:
        return await asyncio.shield(running)
    finally:
        if not running.done():
            await asyncio.wait([running])
