"""The messages of a conversation: JSON to content, in the client's order, each piece with the role of who said it.

    {"role": "system" | "developer" | "user" | "assistant", "content": text or [part, ...]}

    {"type": "text", "text": ...}
    {"type": "image_url", "image_url": {"url": ...}}
    {"type": "video_url", "video_url": {"url": ...}}
    {"type": "input_audio", "input_audio": {"data": base64, "format": ...}}

A `developer` speaks as the `system`. What the model answered, an `assistant` message, may be sent back as it came: its
`images` follow its text. URLs are data URLs, or lead to hosts that the deployer allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mstar_core.client.service import ServedModel
from mstar_core.errors import InvalidRequest
from mstar_core.media.sniff import kind_of
from mstar_core.server.body import shown, validate
from mstar_core.server.parts import PartReader, base64_bytes, part_fields
from mstar_core.server.remote import RemoteMedia
from mstar_core.server.rules import chosen
from mstar_core.server.served import require_modality
from mstar_core.spec.content import Audio, Content, Image, Role, Text, Video

_ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Message(_Strict):
    role: str
    content: Any


class _Answer(_Strict):
    """A message of the model; the fields that clients send along, empty, have nothing that it could say."""

    role: str
    content: Any = None
    images: list[Any] = Field(default_factory=list)
    refusal: None = None
    audio: None = None
    tool_calls: None = None
    function_call: None = None
    annotations: None = None


class _Url(_Strict):
    url: str


class _ImageUrl(_Url):
    detail: Literal["auto"] = "auto"


class _ImagePart(_Strict):
    type: str
    image_url: _ImageUrl
    index: int = 0


class _VideoPart(_Strict):
    type: str
    video_url: _Url


class _Sound(_Strict):
    data: str
    format: Literal["wav", "mp3", "flac", "ogg", "aac"]


class _AudioPart(_Strict):
    type: str
    input_audio: _Sound


@dataclass(frozen=True, slots=True)
class Conversation:
    """Reads the messages of one request. Used in a thread: decoding and fetching take time.

    Raises `InvalidRequest` or `TooLarge` whose `param` is the wrong field's path (`messages.0.content.1.image_url`).
    """

    model: ServedModel
    reader: PartReader
    remote: RemoteMedia

    def content(self, messages: list[dict[str, Any]]) -> list[Content]:
        """All that was said and shown."""
        contents = [piece for index, each in enumerate(messages) for piece in self._message(each, f"messages.{index}")]
        if not contents:
            raise InvalidRequest("'messages' must hold something", param="messages")
        return contents

    def _message(self, message: Mapping[str, Any], at: str) -> Iterator[Content]:
        role = _ROLES[chosen(message.get("role"), _ROLES, f"{at}.role")]
        if role != "assistant":
            yield from self._parts(validate(_Message, message, at).content, role, f"{at}.content")
            return
        answer = validate(_Answer, message, at)
        yield from self._parts(answer.content or [], role, f"{at}.content")
        yield from self._parts(answer.images, role, f"{at}.images")

    def _parts(self, given: object, role: Role, at: str) -> Iterator[Content]:
        if isinstance(given, str):
            yield self._part({"type": "text", "text": given}, role, at)
        elif isinstance(given, list):
            yield from (self._part(part, role, f"{at}.{index}") for index, part in enumerate(given))
        else:
            raise InvalidRequest(f"{at!r} must be a text or a list of parts, got {shown(given)}", param=at)

    def _part(self, part: object, role: Role, at: str) -> Content:
        fields = part_fields(part, at)
        content = _READERS[chosen(fields.get("type"), _READERS, f"{at}.type")](self, fields, role, at)
        require_modality(self.model, content, at)
        return content

    def _text(self, part: Mapping[str, Any], role: Role, at: str) -> Text:
        return replace(self.reader.text(part, at), role=role)

    def _image(self, part: Mapping[str, Any], role: Role, at: str) -> Image:
        url, at = validate(_ImagePart, part, at).image_url.url, f"{at}.image_url.url"
        return replace(self.reader.image_file(self.remote.read(url, at), at), role=role)

    def _video(self, part: Mapping[str, Any], role: Role, at: str) -> Video:
        url, at = validate(_VideoPart, part, at).video_url.url, f"{at}.video_url.url"
        return replace(self.reader.video_file(self.remote.read(url, at), at), role=role)

    def _audio(self, part: Mapping[str, Any], role: Role, at: str) -> Audio:
        sound, at = validate(_AudioPart, part, at).input_audio, f"{at}.input_audio"
        data = base64_bytes(sound.data, f"{at}.data")
        if (kind := kind_of(data)) != sound.format:
            found = kind or "no sound that is known"
            raise InvalidRequest(f"'{at}.format' is {sound.format}, but the data are {found}", param=f"{at}.format")
        return replace(self.reader.audio_file(data, f"{at}.data"), role=role)


_READERS: Mapping[str, Callable[[Conversation, Mapping[str, Any], Role, str], Content]] = {
    "text": Conversation._text,
    "image_url": Conversation._image,
    "video_url": Conversation._video,
    "input_audio": Conversation._audio,
}
