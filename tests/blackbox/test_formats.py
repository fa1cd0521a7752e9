"""Every audio format: one file from first to last byte, as long as the speech, and what its headers say."""

import numpy as np
import pytest

from mstar_core.media import AUDIO_FORMATS
from mstar_core.testing.scripted import RATE

CODED = [name for name in AUDIO_FORMATS if name != "pcm"]
ITEMS = 151
"""Not a whole number of any codec's frames: 1.51 s."""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", CODED)
def test_every_format_decodes_to_the_length_of_the_pcm_answer(server, decoded, name, stream):
    """No codec may swallow the last frames or pad the speech: within 60 ms, the longest codec delay there is."""
    exact = len(server.speech(items=ITEMS, seed=1).content) // 2
    body = server.speech(items=ITEMS, seed=1, response_format=name, stream=stream).content
    assert abs(len(decoded(body)) - exact) / RATE <= 0.06


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ["flac", "wav"])
def test_lossless_formats_hold_exactly_the_pcm_answer(server, decoded, name, stream):
    """Lossless means lossless, to the last sample."""
    exact = np.frombuffer(server.speech(items=ITEMS, seed=1).content, "<i2")
    body = server.speech(items=ITEMS, seed=1, response_format=name, stream=stream).content
    assert np.array_equal(decoded(body), exact)


def test_a_streamed_wav_has_one_header(server):
    """Pieces of a stream may not each be a file of their own."""
    body = server.speech(items=40, response_format="wav", stream=True).content
    assert (body.count(b"RIFF"), body.count(b"WAVE"), body.count(b"data")) == (1, 1, 1)
    assert body.startswith(b"RIFF")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", AUDIO_FORMATS)
def test_content_type_and_first_bytes_say_which_format_it_is(server, name, stream):
    """A body may not be of another format than was asked for, or than its header says."""
    answer = server.speech(response_format=name, stream=stream)
    kind = AUDIO_FORMATS[name]
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind.media_type)
    assert answer.content.startswith(kind.magic)
    others = [other for other in AUDIO_FORMATS.values() if other.magic and other != kind]
    assert not any(answer.content.startswith(other.magic) for other in others)
    assert answer.headers["x-mstar-sample-rate"] == str(RATE)


def test_the_default_format_is_mp3(server):
    """What a client gets that names no format is OpenAI's default."""
    answer = server.http.post("/v1/audio/speech", json={"model": "scripted", "input": "Hello."})
    assert answer.headers["content-type"] == "audio/mpeg"
    assert answer.content.startswith(AUDIO_FORMATS["mp3"].magic)


@pytest.mark.parametrize("name", ["ogg", "WAV", "", "pcm16", None, 3, ["wav"]])
def test_a_format_that_is_not_made_is_refused_with_those_that_are(server, name):
    """An unknown format may not be answered with another one."""
    answer = server.speech(response_format=name)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "response_format")
    if isinstance(name, str):
        assert all(known in error["message"] for known in AUDIO_FORMATS)


@pytest.mark.parametrize(("speed", "tolerance"), [(0.5, 0.05), (1.0, 0.0), (2.0, 0.05), (4.0, 0.1)])
def test_speed_changes_the_length(server, speed, tolerance):
    """A field that is accepted has its effect."""
    plain = len(server.speech(items=ITEMS, seed=1).content)
    length = len(server.speech(items=ITEMS, seed=1, speed=speed).content)
    assert length == pytest.approx(plain / speed, rel=tolerance, abs=0)


def test_speed_is_the_same_streamed_and_whole(server):
    """Changing the tempo may not depend on how the audio is cut into pieces."""
    asked = {"items": ITEMS, "seed": 1, "speed": 1.7}
    assert server.speech(**asked).content == server.speech(**asked, stream=True).content
