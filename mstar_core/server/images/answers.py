"""What the two routes answer: an object with all pictures, or each as an event when it is ready.

Streamed, OpenAI's `image_generation.completed` or `image_edit.completed` for each picture; in between
`image_generation.progress` or `image_edit.progress`, {done, total}. The `index` tells the `n` requests apart.
"""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.types import Send

from mstar_core.client.ticket import Ticket
from mstar_core.errors import InvalidRequest, RequestError
from mstar_core.media import IMAGE_FORMATS, UnencodableImage, encode_image
from mstar_core.server.data_urls import data_url
from mstar_core.server.images.fields import Picturing
from mstar_core.server.replies import event, send_events, send_whole
from mstar_core.server.served import usage_fields
from mstar_core.server.several import gathered, merged
from mstar_core.server.tickets import in_thread
from mstar_core.spec.content import Image, Progress


async def send_pictures(picturing: Picturing, tickets: Sequence[Ticket], send: Send) -> None:
    """All pictures, in the order of the requests."""
    made = await gathered(_pictures(ticket) for ticket in tickets)
    body = await in_thread(_whole, picturing, [image for images in made for image in images], tickets)
    await send_whole(send, {"content-type": "application/json"}, body)


async def send_picture_events(picturing: Picturing, keepalive_s: float, tickets: Sequence[Ticket], send: Send) -> None:
    """Each picture when it is ready."""
    told = merged([_events(picturing, index, ticket) for index, ticket in enumerate(tickets)])
    await send_events(send, told, keepalive_s)


async def _pictures(ticket: Ticket) -> list[Image]:
    images = [piece async for piece in ticket if isinstance(piece, Image)]
    if not images:
        raise _nothing(ticket)
    return images


def _whole(picturing: Picturing, images: Sequence[Image], tickets: Sequence[Ticket]) -> bytes:
    told = {
        "created": int(time.time()),
        **_about(picturing, images[0]),
        "data": [_encoded(picturing, image) for image in images],
        "usage": usage_fields(_summed(tickets)),
    }
    return msgspec.json.encode(told)


async def _events(picturing: Picturing, index: int, ticket: Ticket) -> AsyncGenerator[bytes, None]:
    last = None
    async with aclosing(ticket.__aiter__()) as pieces:
        async for piece in pieces:
            if isinstance(piece, Progress):
                yield _event(picturing, "progress", {"index": index, "done": piece.done, "total": piece.total})
            elif isinstance(piece, Image):
                if last is not None:
                    yield await in_thread(_completed, picturing, index, last, {})
                last = piece  # the counts come with the request's end, and are told with its last picture
    if last is None:
        raise _nothing(ticket)
    assert ticket.end is not None
    yield await in_thread(_completed, picturing, index, last, usage_fields(ticket.end.usage))


def _completed(picturing: Picturing, index: int, image: Image, usage: Mapping[str, Any]) -> bytes:
    told = {"index": index, "created_at": int(time.time()), **_about(picturing, image), "usage": usage}
    return _event(picturing, "completed", {**told, **_encoded(picturing, image)})


def _event(picturing: Picturing, what: str, fields: Mapping[str, Any]) -> bytes:
    name = f"{picturing.name}.{what}"
    return event(name, {"type": name, **fields})


def _about(picturing: Picturing, image: Image) -> dict[str, Any]:
    height, width, _ = image.pixels.shape
    size = f"{width}x{height}"
    return {"background": "opaque", "output_format": picturing.format, "quality": "auto", "size": size}


def _encoded(picturing: Picturing, image: Image) -> dict[str, str]:
    """A picture's file in base64, or in a data URL: nothing is kept that could be fetched later."""
    try:
        body = encode_image(image.pixels, picturing.format, picturing.quality)
    except UnencodableImage as error:
        raise InvalidRequest(f"'output_format': {error}", param="output_format") from None
    if picturing.as_url:
        return {"url": data_url(body, IMAGE_FORMATS[picturing.format].media_type)}
    return {"b64_json": base64.b64encode(body).decode()}


def _summed(tickets: Sequence[Ticket]) -> dict[str, int]:
    """The counts of all requests together."""
    names = dict.fromkeys(name for usage in _usages(tickets) for name in usage)
    return {name: sum(usage.get(name, 0) for usage in _usages(tickets)) for name in names}


def _usages(tickets: Sequence[Ticket]) -> Iterator[Mapping[str, int]]:
    return (ticket.end.usage for ticket in tickets if ticket.end is not None)


def _nothing(ticket: Ticket) -> RequestError:
    reason = ticket.end.reason if ticket.end else "nothing"
    return RequestError(f"the model made no picture; its request ended with {reason!r}")
