"""Conversations over HTTP with the bundled checkpoint."""

import base64
import io

import numpy as np
import openai
import pytest
from mstar_qwen_omni import plugin

from mstar_core.client.service import Service
from mstar_core.media import decode_audio, encode_audio
from mstar_core.testing.clips import clip_file, image_file, moving
from mstar_core.testing.plugins import registry_with
from mstar_core.testing.server import http_server

TONE = np.sin(np.arange(12000, dtype=np.float32) / 9) / 2


def url(kind, data):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def shown(turns):
    """A sound, a picture and a clip, with questions in between."""
    sound = {"data": base64.b64encode(encode_audio(TONE, "wav", 24000)).decode(), "format": "wav"}
    user = [
        {"type": "input_audio", "input_audio": sound},
        {"type": "text", "text": "and"},
        {"type": "image_url", "image_url": {"url": url("image/png", image_file(moving(1)[0]))}},
        {"type": "video_url", "video_url": {"url": url("video/mp4", clip_file(moving(), sound_rate=48000))}},
        {"type": "text", "text": "?"},
    ]
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": user}, *turns]


@pytest.fixture(scope="module")
def ask():
    with (
        Service.start(["qwen-omni"], registry=registry_with(plugin)) as service,
        http_server(service) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):

        def asking(messages, **fields):
            extra = {"max_audio_frames": 6, "talker_temperature": 0.5} | fields.pop("extra_body", {})
            fields = {"max_tokens": 10, "seed": 3, "model": "qwen-omni"} | fields
            return client.chat.completions.create(messages=messages, extra_body=extra, **fields)

        yield asking


def test_an_answer_is_text_and_its_usage(ask):
    answer = ask(shown([]))
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].message.content) == 10
    assert answer.usage.completion_tokens == 10
    assert answer.usage.prompt_tokens > 100


@pytest.mark.parametrize("modalities", [["text", "audio"], ["audio"]])
def test_an_answer_in_speech_has_its_text_beside_it(ask, modalities):
    audio = {"format": "wav", "voice": "chelsie"}
    (choice,) = ask(shown([]), modalities=modalities, audio=audio).choices
    samples, rate = decode_audio(base64.b64decode(choice.message.audio.data))
    assert rate == 24000
    assert (len(samples) + 555) % 1920 == 0
    assert len(choice.message.audio.transcript) == 10


def test_a_stream_gives_the_same_text_and_speech(ask):
    fields = {"modalities": ["text", "audio"], "audio": {"format": "pcm16", "voice": "aiden"}}
    whole = ask(shown([]), **fields).choices[0].message.audio
    text, sound = "", io.BytesIO()
    for chunk in ask(shown([]), stream=True, **fields):
        audio = chunk.model_dump()["choices"][0]["delta"].get("audio") or {}
        text += audio.get("transcript") or ""
        sound.write(base64.b64decode(audio.get("data") or ""))
    assert text == whole.transcript
    assert sound.getvalue() == base64.b64decode(whole.data)


def test_earlier_turns_change_the_answer(ask):
    later = [{"role": "assistant", "content": "A tone."}, {"role": "user", "content": "Which?"}]
    first, second = (ask(shown(turns), temperature=1.5) for turns in ([], later))
    assert first.choices[0].message.content != second.choices[0].message.content
    assert second.usage.prompt_tokens - first.usage.prompt_tokens == len("A tone.") + len("Which?") + 2 * 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"audio": {"format": "wav", "voice": "ethel"}, "modalities": ["audio"]}, "audio.voice"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"extra_body": {"audio_padding": "none"}}, "audio_padding"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_field(ask, fields, param):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(shown([]), **fields)
    assert raised.value.body["param"] == param


def test_a_conversation_that_is_too_long_is_refused_with_the_numbers(ask):
    with pytest.raises(
        openai.BadRequestError, match="comes to 50008 tokens; the model reads fewer than 4096"
    ) as raised:
        ask([{"role": "user", "content": "hello" * 10_000}])
    assert raised.value.body["param"] == "messages"
