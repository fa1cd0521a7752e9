"""The fields of a chat completion, and the request that they make of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mstar_core.client.service import ServedModel
from mstar_core.errors import InvalidRequest, nearest
from mstar_core.media import AUDIO_FORMATS
from mstar_core.server.body import shown
from mstar_core.server.rules import choice
from mstar_core.server.served import own_params, told_as
from mstar_core.server.several import MOST, Requests
from mstar_core.spec.content import Content
from mstar_core.spec.params import check_parameters

CARRIED = ("text", "image", "audio")
"""The modalities that a message of an answer can have."""

_PCM16 = "pcm16"
"""OpenAI's name, here, for what its speech route calls `pcm`."""

_MOST_STOPS = 16


class AudioFields(BaseModel):
    """How the audio of an answer is to be: its format, and the model's parameter `voice`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: str = "wav"
    voice: str = ""

    @field_validator("format")
    @classmethod
    def _known(cls, name: str) -> str:
        return "pcm" if name == _PCM16 else choice(name, (*AUDIO_FORMATS, _PCM16))


class StreamOptions(BaseModel):
    """Whether the last chunk of a stream has the usage of all."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool = False


class ChatFields(BaseModel):
    """The fields of every model; what else a body has must be a request parameter of its model.

    `user` and `metadata` are labels, with no effect in OpenAI's API either. Nothing is ever stored.
    """

    model_config = ConfigDict(strict=True, extra="allow")

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    modalities: list[str] = Field(default_factory=list)
    audio: AudioFields = AudioFields()
    max_tokens: int = Field(default_factory=int)
    max_completion_tokens: int = Field(default_factory=int)
    stop: list[str] = Field(default_factory=list)
    n: int = Field(1, ge=1, le=MOST)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: str = ""
    metadata: dict[str, str] = Field(default_factory=dict)
    store: Literal[False] = False

    @field_validator("stop", mode="before")
    @classmethod
    def _listed(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop

    @field_validator("stop")
    @classmethod
    def _says_something(cls, stop: list[str]) -> list[str]:
        if len(stop) > _MOST_STOPS or not all(stop):
            raise ValueError(f"must be at most {_MOST_STOPS} texts, none of them empty; got {shown(stop)}")
        return stop

    def given(self, name: str) -> bool:
        """Whether the body has that field."""
        return name in self.model_fields_set


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """One checked request: what the model gets, and how the answer is made."""

    requests: Requests
    stop: tuple[str, ...]
    audio_format: str
    stream: bool
    include_usage: bool


def chat_of(fields: ChatFields, content: list[Content], model: ServedModel) -> Chat:
    """The request that the fields ask of this model; raises `InvalidRequest` for what it cannot have."""
    wanted = _wanted(fields, model)
    params, named = _params(fields, model)
    with told_as(named):
        check_parameters(model.parameters, params)
    if fields.given("stream_options") and not fields.stream:
        raise InvalidRequest("'stream_options' says how to stream, but 'stream' is not true", param="stream_options")
    return Chat(
        requests=Requests(model=fields.model, content=content, params=params, outputs=wanted, n=fields.n, fields=named),
        stop=() if "stop" in params else tuple(fields.stop),
        audio_format=fields.audio.format,
        stream=fields.stream,
        include_usage=fields.stream_options.include_usage,
    )


def _wanted(fields: ChatFields, model: ServedModel) -> frozenset[str]:
    """The modalities of the answer; unless the request names some, text, if the model makes it."""
    made = [modality for modality in model.spec.card.outputs if modality in CARRIED]
    for modality in fields.modalities:
        if modality not in made:
            problem = f"model {fields.model!r} makes {', '.join(made)}, not {shown(modality)}{nearest(modality, made)}"
            raise InvalidRequest(f"'modalities': {problem}", param="modalities")
    if fields.given("modalities") and not fields.modalities:
        raise InvalidRequest(f"'modalities' must not be empty; it may have {', '.join(made)}", param="modalities")
    wanted = frozenset(fields.modalities or (["text"] if "text" in made else made))
    if "audio" in wanted and "text" in made:
        wanted |= {"text"}  # the transcript
    if fields.given("audio") and "audio" not in wanted:
        raise InvalidRequest("'audio' says how audio is to be, but 'modalities' has none", param="audio")
    return wanted


def _params(fields: ChatFields, model: ServedModel) -> tuple[dict[str, Any], Mapping[str, str]]:
    """The model's parameters that the fields set, and the fields by parameter where their names differ."""
    given = dict(fields.model_extra or {})
    named = {"input": "messages"}
    limits = [name for name in ("max_tokens", "max_completion_tokens") if fields.given(name)]
    if len(limits) == 2 and fields.max_tokens != fields.max_completion_tokens:
        problem = "'max_tokens' and 'max_completion_tokens' are the same limit, and were given different values"
        raise InvalidRequest(problem, param="max_completion_tokens")
    for limit in limits:
        given["max_tokens"] = getattr(fields, limit)
        if limit != "max_tokens":
            named["max_tokens"] = limit
    if fields.audio.voice:
        given["voice"], named["voice"] = fields.audio.voice, "audio.voice"
    declared = {parameter.name for parameter in model.parameters}
    if fields.given("stop") and "stop" in declared:
        given["stop"] = fields.stop[0] if len(fields.stop) == 1 else fields.stop
    with told_as(named):
        return own_params(given, model, ChatFields.model_fields), named
