"""`/generate` with a model that says how far it has come, and pictures as files."""

import base64
import json

import httpx
import pytest

from mstar_core.media.sniff import kind_of

ASK = {"model": "toy-painter", "input": "A circle.", "parameters": {"seed": 1}}


@pytest.fixture
def post(painter_url):
    return lambda **fields: httpx.post(f"{painter_url}/generate", json=ASK | fields, timeout=30)


def events(text):
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    return [(name, json.loads(data)) for name, data in (b.removeprefix("event: ").split("\ndata: ") for b in blocks)]


def test_stream_has_an_event_for_each_step(post):
    told = events(post(outputs=["image"], stream=True).text)
    assert told[:4] == [("progress", {"done": done, "total": 4}) for done in (1, 2, 3, 4)]
    assert [name for name, _ in told[4:]] == ["output", "end"]


def test_progress_cannot_be_asked_for_and_is_no_output(post):
    assert [part["type"] for part in post().json()["outputs"]] == ["text", "image"]
    answer = post(outputs=["progress"])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "outputs")


@pytest.mark.parametrize("format", ["png", "jpeg", "webp"])
@pytest.mark.parametrize("stream", [False, True])
def test_pictures_come_in_the_format_asked_for(post, format, stream):
    answer = post(outputs=["image"], image_format=format, stream=stream)
    (part,) = [data for name, data in events(answer.text) if name == "output"] if stream else answer.json()["outputs"]
    assert (part["type"], part["format"]) == ("image", format)
    assert kind_of(base64.b64decode(part["data"])) == format


def test_without_a_format_pixels_are_raw(post):
    (part,) = post(outputs=["image"]).json()["outputs"]
    assert (part["dtype"], part["shape"]) == ("uint8", [48, 64, 3])


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"image_format": "gif"}, "image_format", "png, jpeg, webp"),
        ({"image_format": "jpg"}, "image_format", "did you mean 'jpeg'"),
        ({"image_format": ""}, "image_format", "png, jpeg, webp"),
        ({"audio_format": "wav"}, "audio_format", "makes no audio"),
    ],
)
def test_a_format_that_cannot_be_is_refused(post, fields, param, hint):
    error = post(**fields).json()["error"]
    assert (error["param"], hint in error["message"]) == (param, True), error


def test_model_without_pictures_has_no_image_format(http):
    answer = http.post("/generate", json={"model": "speaker", "input": "Hello.", "image_format": "png"})
    assert "makes no image" in answer.json()["error"]["message"]
