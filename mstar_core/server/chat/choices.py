"""One of the answers to a conversation, while it is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from mstar_core.client.ticket import Ticket
from mstar_core.server.stop_strings import StopStrings
from mstar_core.spec.content import Audio, Piece, Progress, Text


class Choice:
    """Iterate `pieces` once; then `finish_reason` and `usage` are set.

    The text ends before the first of the `stop` strings, and with it the request. It has then counted only what had
    ended, so the pieces of text that came are counted as its output.
    """

    def __init__(self, index: int, ticket: Ticket, stop: Sequence[str]) -> None:
        self.index = index
        self.id = ticket.id
        self.finish_reason = "stop"
        self.usage: Mapping[str, int] = {}
        self._ticket = ticket
        self._stops = StopStrings(stop)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """What the model makes, up to a stop string."""
        written = 0
        async with aclosing(self._ticket.__aiter__()) as pieces:
            async for piece in pieces:
                if isinstance(piece, Text):
                    written += 1
                    piece = Text(self._stops.push(piece.text))
                elif not isinstance(piece, (Audio, Progress)) and (rest := self._stops.rest()):
                    yield Text(rest)  # no stop string reaches over a picture
                if piece != Text(""):
                    yield piece
                if self._stops.found:
                    break
        if self._stops.found:
            counts = await self._ticket.stop()
            self.usage = {**counts, "output_tokens": max(counts.get("output_tokens", 0), written)}
            return
        if rest := self._stops.rest():
            yield Text(rest)
        assert self._ticket.end is not None
        self.usage = self._ticket.end.usage
        self.finish_reason = "length" if self._ticket.end.reason == "length" else "stop"


def usage_of(choices: Sequence[Choice]) -> dict[str, int]:
    """The counts of all answers, in OpenAI's words. They share one prompt."""
    prompt = max(choice.usage.get("input_tokens", 0) for choice in choices)
    completion = sum(choice.usage.get("output_tokens", 0) for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
