"""What a chat completion answers: an object, or chunks as server-sent events.

A message has its text as `content`, or null; its pictures as `images`, `[{"type": "image_url", "index": n,
"image_url": {"url": "data:image/png;base64,..."}}, ...]`, the way of most servers that answer with pictures; and its
sound as `audio` {id, data, transcript, expires_at}, where the text is the transcript. Chunks have the same fields in
their `delta`, and a `progress`, {done, total}, while the model works on a picture.
"""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.types import Send

from mstar_core.client.ticket import Ticket
from mstar_core.media import IMAGE_FORMATS, encode_audio, encode_image
from mstar_core.server.audio_track import AudioTrack
from mstar_core.server.chat.choices import Choice, usage_of
from mstar_core.server.chat.fields import Chat
from mstar_core.server.data_urls import data_url
from mstar_core.server.outputs import joined
from mstar_core.server.replies import send_events, send_whole
from mstar_core.server.several import gathered, merged
from mstar_core.server.tickets import in_thread
from mstar_core.spec.content import Audio, Content, Image, Progress, Text

_PICTURES = IMAGE_FORMATS["png"]

_DONE = b"data: [DONE]\n\n"


async def send_completion(chat: Chat, tickets: Sequence[Ticket], send: Send) -> None:
    """The whole answer."""
    choices = _choices(chat, tickets)
    messages = await gathered(_message(chat, choice) for choice in choices)
    told = [
        {"index": choice.index, "message": message, "logprobs": None, "finish_reason": choice.finish_reason}
        for choice, message in zip(choices, messages, strict=True)
    ]
    frame = _frame(chat, tickets, "chat.completion")
    body = msgspec.json.encode({**frame, "choices": told, "usage": usage_of(choices)})
    await send_whole(send, {"content-type": "application/json"}, body)


async def send_chunks(chat: Chat, keepalive_s: float, tickets: Sequence[Ticket], send: Send) -> None:
    """The answer as it is made."""
    await send_events(send, _chunks(chat, tickets), keepalive_s)


def _choices(chat: Chat, tickets: Sequence[Ticket]) -> list[Choice]:
    return [Choice(index, ticket, chat.stop) for index, ticket in enumerate(tickets)]


def _frame(chat: Chat, tickets: Sequence[Ticket], kind: str) -> dict[str, Any]:
    created = int(time.time())
    return {"id": f"chatcmpl-{tickets[0].id}", "object": kind, "created": created, "model": chat.requests.model}


async def _message(chat: Chat, choice: Choice) -> dict[str, Any]:
    contents = [piece async for piece in choice.pieces() if not isinstance(piece, Progress)]
    return await in_thread(_whole_message, contents, chat, choice)


def _whole_message(contents: Sequence[Content], chat: Chat, choice: Choice) -> dict[str, Any]:
    text = "".join(content.text for content in contents if isinstance(content, Text))
    pictures = [content for content in contents if isinstance(content, Image)]
    said = text if text or "text" in chat.requests.outputs else None
    message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None}
    if pictures:
        message["images"] = [_picture(picture, index) for index, picture in enumerate(pictures)]
    for sound in joined(content for content in contents if isinstance(content, Audio)):
        assert isinstance(sound, Audio)
        body = encode_audio(sound.samples, chat.audio_format, sound.rate)
        message |= {"content": None, "audio": {**_sound(choice, body), "transcript": text, **_expiry()}}
    return message


def _picture(picture: Image, index: int) -> dict[str, Any]:
    url = data_url(encode_image(picture.pixels, _PICTURES.name), _PICTURES.media_type)
    return {"type": "image_url", "index": index, "image_url": {"url": url}}


def _sound(choice: Choice, body: bytes) -> dict[str, Any]:
    return {"id": _audio_id(choice), "data": base64.b64encode(body).decode()}


def _audio_id(choice: Choice) -> str:
    return f"audio-{choice.id}"


def _expiry() -> dict[str, Any]:
    """Nothing is kept, so no later request can refer to a sound by its id."""
    return {"expires_at": int(time.time())}


async def _chunks(chat: Chat, tickets: Sequence[Ticket]) -> AsyncGenerator[bytes, None]:
    choices = _choices(chat, tickets)
    frame = _frame(chat, tickets, "chat.completion.chunk")
    if chat.include_usage:
        frame["usage"] = None
    async with aclosing(merged([_told(chat, choice) for choice in choices])) as told:
        async for each in told:
            yield _data({**frame, "choices": [each]})
    if chat.include_usage:
        yield _data({**frame, "choices": [], "usage": usage_of(choices)})
    yield _DONE


async def _told(chat: Chat, choice: Choice) -> AsyncGenerator[Mapping[str, Any], None]:
    """What the chunks say of one choice."""
    async with aclosing(_deltas(chat, choice)) as deltas:
        # Nothing is told before there is something: a request that the server refuses has its own status then.
        first: Mapping[str, Any] = await anext(deltas, {})
        yield _delta(choice, {"role": "assistant", "content": "", **first})
        async for delta in deltas:
            yield _delta(choice, delta)
    yield {**_delta(choice, {}), "finish_reason": choice.finish_reason}


async def _deltas(chat: Chat, choice: Choice) -> AsyncGenerator[Mapping[str, Any], None]:
    spoken = "audio" in chat.requests.outputs
    track = AudioTrack(chat.audio_format, streaming=True)
    pictures = 0
    try:
        async with aclosing(choice.pieces()) as pieces:
            async for piece in pieces:
                match piece:
                    case Text(text):
                        identity = {"id": _audio_id(choice), "transcript": text}
                        yield {"audio": identity} if spoken else {"content": text}
                    case Image():
                        yield {"images": [await in_thread(_picture, piece, pictures)]}
                        pictures += 1
                    case Progress(done, total):
                        yield {"progress": {"done": done, "total": total}}
                    case Audio() if body := await track.push(piece):
                        yield {"audio": _sound(choice, body)}
        if track.started:
            yield {"audio": {**_sound(choice, await track.finish()), **_expiry()}}
    finally:
        track.close()


def _delta(choice: Choice, delta: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}


def _data(value: Mapping[str, Any]) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(value)
