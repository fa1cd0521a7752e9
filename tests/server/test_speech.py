import base64
import io
import json
import wave

import av
import httpx
import openai
import pytest

from mstar_core.media import AUDIO_FORMATS

ROUTE = "/v1/audio/speech"


def body(**fields):
    return {"model": "speaker", "input": "Hello there.", **fields}


def events(text):
    """(name, data) of each event of a server-sent stream; comments left out."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    pairs = [block.removeprefix("event: ").split("\ndata: ") for block in blocks]
    return [(name, json.loads(data)) for name, data in pairs]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", AUDIO_FORMATS)
def test_speech_in_each_format_has_its_media_type_magic_and_length(http, service, tone, name, stream):
    service.script = tone()
    answer = http.post(ROUTE, json=body(response_format=name, stream=stream))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == AUDIO_FORMATS[name].media_type
    assert answer.content.startswith(AUDIO_FORMATS[name].magic)
    if name == "pcm":
        seconds = len(answer.content) / 2 / 24000
    else:
        with av.open(io.BytesIO(answer.content)) as container:
            frames = list(container.decode(audio=0))
            seconds = sum(frame.samples for frame in frames) / frames[0].sample_rate
    assert seconds == pytest.approx(0.4, abs=0.06)


def test_speech_without_format_is_mp3(http, service, tone):
    service.script = tone()
    assert http.post(ROUTE, json=body()).headers["content-type"] == "audio/mpeg"


def test_pcm_whole_streamed_and_in_a_wav_is_the_same(http, service, tone, pcm):
    service.script = tone()
    whole = http.post(ROUTE, json=body(response_format="pcm"))
    streamed = http.post(ROUTE, json=body(response_format="pcm", stream=True))
    wav = http.post(ROUTE, json=body(response_format="wav"))
    with wave.open(io.BytesIO(wav.content)) as file:
        payload = file.readframes(file.getnframes())
    assert whole.content == streamed.content == payload == pcm(service.script)
    assert whole.headers["x-mstar-sample-rate"] == "24000"


def test_whole_body_has_its_length_and_finish_reason(http, service, tone):
    service.script = [*tone(), "length"]
    answer = http.post(ROUTE, json=body(response_format="wav"))
    assert answer.headers["content-length"] == str(len(answer.content))
    assert answer.headers["x-mstar-finish-reason"] == "length"


def test_streamed_wav_has_one_header(http, service, tone):
    service.script = tone()
    content = http.post(ROUTE, json=body(response_format="wav", stream=True)).content
    assert (content.count(b"RIFF"), content.count(b"data")) == (1, 1)


def test_stream_sends_audio_before_the_model_has_ended(http, service, tone):
    first, second = tone(2)
    service.script = [first, 60, second]
    with http.stream("POST", ROUTE, json=body(response_format="pcm", stream=True)) as answer:
        assert "content-length" not in answer.headers
        pieces = answer.iter_raw()  # kept: httpx closes the connection with the iterator
        assert len(next(pieces)) == 2 * len(first.samples)
        assert service.running


def test_stream_for_http_1_0_is_whole_since_its_end_would_look_like_a_cut(url, service, tone, pcm):
    service.script = tone()
    with httpx.Client(base_url=url) as client:
        raw = _http_1_0(client, body(response_format="pcm", stream=True))
    head, _, content = raw.partition(b"\r\n\r\n")
    assert b"content-length" in head.lower()
    assert content == pcm(service.script)


def _http_1_0(client, fields):
    import socket

    data = json.dumps(fields).encode()
    head = f"POST {ROUTE} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=10) as connection:
        connection.sendall(head.encode() + data)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_events_carry_the_audio_and_then_the_usage(http, service, tone, pcm):
    service.script = [*tone(), "length"]
    answer = http.post(ROUTE, json=body(response_format="pcm", stream_format="sse"))
    assert answer.headers["content-type"].startswith("text/event-stream")
    *deltas, done = events(answer.text)
    assert {name for name, _ in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(data["audio"]) for _, data in deltas) == pcm(service.script[:-1])
    usage = {"input_tokens": 3, "output_tokens": 7, "total_tokens": 10}
    assert done == (
        "speech.audio.done",
        {"type": "speech.audio.done", "usage": usage, "finish_reason": "length"},
    )


def test_events_are_kept_alive_by_comments_while_nothing_comes(http, service, tone):
    service.script = [0.5, *tone(1)]
    text = http.post(ROUTE, json=body(response_format="pcm", stream_format="sse")).text
    assert text.startswith(": keep-alive\n\n")
    assert [name for name, _ in events(text)] == ["speech.audio.delta", "speech.audio.done"]


def test_speed_changes_the_length(http, service, tone):
    service.script = tone()
    whole = http.post(ROUTE, json=body(response_format="pcm", speed=2.0)).content
    assert len(whole) == 2 * round(0.4 * 24000 / 2)


def test_model_gets_the_text_the_voice_and_its_parameters(http, service, tone):
    service.script = tone(1)
    fields = body(voice="leo", temperature=1, seed=2**63 - 1)
    http.post(ROUTE, json=fields, headers={"x-request-id": "mine"})
    (seen,) = service.seen
    assert [part.text for part in seen["content"]] == ["Hello there."]
    assert seen["params"] == {"voice": "leo", "temperature": 1.0, "seed": 2**63 - 1}
    assert (seen["outputs"], seen["id"]) == (frozenset({"audio"}), "mine")


def test_voice_as_an_object_is_the_voice_of_that_id(http, service, tone):
    service.script = tone(1)
    http.post(ROUTE, json=body(voice={"id": "leo"}))
    assert service.seen[0]["params"]["voice"] == "leo"


def test_model_that_says_nothing_gives_a_valid_file_without_samples(http, service):
    answer = http.post(ROUTE, json=body(response_format="wav"))
    assert answer.headers["x-mstar-finish-reason"] == "stop"
    with wave.open(io.BytesIO(answer.content)) as file:
        assert file.getnframes() == 0


@pytest.mark.parametrize("name", AUDIO_FORMATS)
def test_openai_client_speaks_each_format(url, service, tone, name):
    service.script = tone()
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = client.audio.speech.create(model="speaker", input="Hi.", voice="tara", response_format=name)
    assert answer.content.startswith(AUDIO_FORMATS[name].magic)


def test_openai_client_streams(url, service, tone, pcm):
    service.script = tone()
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        speech = client.audio.speech.with_streaming_response
        fields = {"model": "speaker", "input": "Hi.", "voice": "tara", "response_format": "pcm"}
        with speech.create(**fields, extra_body={"stream": True}) as answer:
            streamed = b"".join(answer.iter_bytes())
        with speech.create(**fields, stream_format="sse") as answer:
            names = [name for name, _ in events("".join(answer.iter_text()))]
    assert streamed == pcm(service.script)
    assert names[-1] == "speech.audio.done"


def test_openai_client_raises_its_own_errors(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="tara, leo") as wrong:
            client.audio.speech.create(model="speaker", input="Hi.", voice="alloy")
        with pytest.raises(openai.NotFoundError, match="speaker"):
            client.audio.speech.create(model="speeker", input="Hi.", voice="tara")
    assert wrong.value.param == "voice"
