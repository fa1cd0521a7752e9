"""Chat completions over real HTTP, mostly with OpenAI's client and the toy painter behind the real runtime."""

import base64
import io
import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import PIL.Image
import pytest

from mstar_core.errors import NodeFailed, Overloaded
from mstar_core.media import decode_image, encode_audio
from mstar_core.spec.content import Audio, Image, Progress, Text, Video
from mstar_core.spec.params import Parameter
from mstar_core.testing.clips import clip_file, image_file, moving

RED = np.full((2, 4, 3), (255, 0, 0), np.uint8)
BLUE = np.full((6, 8, 3), (0, 0, 255), np.uint8)
HELLO = [{"role": "user", "content": "Hello."}]
SLOW = {"delay_ms": 20.0, "steps": 1000}


def url_of(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture(data):
    return {"type": "image_url", "image_url": {"url": url_of(data)}}


def shown(data):
    return [{"role": "user", "content": [picture(data)]}]


def text(words):
    return {"type": "text", "text": words}


def pixels_of(image):
    assert image["type"] == "image_url"
    head, _, data = image["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    body = base64.b64decode(data)
    assert body.startswith(b"\x89PNG")
    return decode_image(body)


@pytest.fixture(scope="module")
def shared_service(scripted):
    """For what the toy painter does not do: `talker` takes and makes everything; `mute` has no conversations."""
    kinds = ("text", "audio", "image", "video", "tensor")
    voice = Parameter(name="voice", kind="str", default="tara", choices=("tara", "leo"), doc="Who speaks.")
    return scripted({"talker": (kinds, kinds, ("/v1/chat/completions",), (voice,)), "mute": (kinds, kinds, (), ())})


@pytest.fixture
def ask(painter_client):
    def call(messages=HELLO, **fields):
        return painter_client.chat.completions.create(model="toy-painter", messages=messages, **fields)

    return call


@pytest.fixture
def answer(ask):
    return lambda messages, **fields: ask(messages, **fields).choices[0].message.content


@pytest.fixture
def refusal(ask):
    def call(messages=HELLO, **fields):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(messages, **fields)
        assert caught.value.body["type"] == "invalid_request_error"
        return caught.value.param, caught.value.body["message"]

    return call


def test_answer_is_a_completion_with_its_reason_and_usage(ask):
    completion = ask()
    assert completion.object == "chat.completion"
    assert completion.id.startswith("chatcmpl-")
    assert completion.model == "toy-painter"
    (choice,) = completion.choices
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "stop", "assistant")
    assert choice.message.content == "user: Hello."
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (12, 3, 15)


def test_texts_and_pictures_come_in_the_clients_order_with_their_roles(answer):
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [text("Be kind.")]},
        {
            "role": "user",
            "content": [text("Before."), picture(image_file(RED)), text("Between."), picture(image_file(BLUE))],
        },
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": [picture(image_file(BLUE)), text("After.")]},
    ]
    assert answer(said).splitlines() == [
        "system: Be brief.",
        "system: Be kind.",
        "user: Before.",
        "user: <4x2 [255, 0, 0]>",
        "user: Between.",
        "user: <8x6 [0, 0, 255]>",
        "assistant: Yes.",
        "user: <8x6 [0, 0, 255]>",
        "user: After.",
    ]


def test_stream_gives_the_same_text_in_several_chunks(ask):
    chunks = list(ask(stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert len(texts) == 3
    assert "".join(texts) == "user: Hello."
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_ends_with_done_and_on_demand_with_usage(painter_url):
    body = {"model": "toy-painter", "messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
    reply = httpx.post(f"{painter_url}/v1/chat/completions", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    last = json.loads(lines[-2])
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    assert all(json.loads(line)["usage"] is None for line in lines[:-2])


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("stream", [False, True])
def test_answer_capped_by_its_length_has_everything_so_far_and_says_so(ask, field, stream):
    completion = ask(**{field: 2}, stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in completion]
        said, reason = "".join(each.delta.content or "" for each in choices), choices[-1].finish_reason
    else:
        said, reason = completion.choices[0].message.content, completion.choices[0].finish_reason
    assert (said, reason) == ("user: He", "length")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["r: Hel", ["nothing", "ello", " H"]])
def test_stop_string_across_pieces_ends_the_text_before_it_and_the_request(ask, painter, eventually, stop, stream):
    began = time.monotonic()
    completion = ask(
        [{"role": "user", "content": "Hello." + 1000 * "x"}], stop=stop, stream=stream, extra_body={"delay_ms": 20.0}
    )
    if stream:
        choices = [chunk.choices[0] for chunk in completion]
        said, reason = "".join(each.delta.content or "" for each in choices), choices[-1].finish_reason
    else:
        said, reason = completion.choices[0].message.content, completion.choices[0].finish_reason
        assert 1 <= completion.usage.completion_tokens < 20
    assert (said, reason) == ("use" if stop == "r: Hel" else "user:", "stop")
    assert time.monotonic() - began < 4  # all of it takes five seconds
    assert eventually(lambda: painter.open_requests == 0)


def test_several_choices_are_several_requests_whose_seeds_follow_one_another(ask):
    several = ask(n=3, seed=2**63 - 1, temperature=1.0)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert [choice.message.content[:2] for choice in several.choices] == ["07", "00", "01"]
    single = ask(seed=1, temperature=1.0)
    assert single.choices[0].message.content == several.choices[2].message.content
    assert several.usage.prompt_tokens == single.usage.prompt_tokens
    assert several.usage.completion_tokens == 3 * single.usage.completion_tokens


def test_streamed_choices_are_told_apart_by_their_index(ask):
    texts, reasons = {}, {}
    for chunk in ask(n=8, seed=10, temperature=1.0, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        reasons[choice.index] = choice.finish_reason
    assert texts == {index: f"{10 + index} user: Hello." for index in range(8)}
    assert set(reasons.values()) == {"stop"}


def test_seed_decides_alone_and_its_ends_work(answer):
    said = [answer(HELLO, seed=seed, temperature=1.0) for seed in (0, 2**63 - 1, 5, 0)]
    assert said[0] == said[3] == "00 user: Hello."
    assert said[1] == "07 user: Hello."
    assert said[2] == "05 user: Hello."


def test_each_of_many_callers_gets_its_own_answer(ask):
    def call(number):
        said = [{"role": "user", "content": f"I am {number}."}]
        whole = ask(said, temperature=1.0, seed=number).choices[0].message.content
        pieces = ask(said, temperature=1.0, seed=number, stream=True)
        return whole, "".join(chunk.choices[0].delta.content or "" for chunk in pieces)

    with ThreadPoolExecutor(32) as callers:
        answers = list(callers.map(call, range(32)))
    assert answers == [2 * (f"{number:02} user: I am {number}.",) for number in range(32)]


def test_pictures_come_as_images_beside_the_text(ask):
    message = ask(modalities=["text", "image"], seed=1, extra_body={"width": 32, "height": 16}).choices[0].message
    assert message.content == "user: Hello."
    (image,) = message.images
    assert pixels_of(image).shape == (16, 32, 3)
    alone = ask(modalities=["image"], seed=1, extra_body={"width": 32, "height": 16}).choices[0].message
    assert alone.content is None
    np.testing.assert_array_equal(pixels_of(alone.images[0]), pixels_of(image))


def test_streamed_pictures_come_after_their_progress(ask):
    deltas = [chunk.choices[0].delta for chunk in ask(modalities=["image"], seed=1, stream=True)]
    told = [delta.progress for delta in deltas if hasattr(delta, "progress")]
    assert told == [{"done": done, "total": 4} for done in (1, 2, 3, 4)]
    (images,) = [delta.images for delta in deltas if hasattr(delta, "images")]
    whole = ask(modalities=["image"], seed=1).choices[0].message.images
    assert images == whole


def test_an_answer_may_be_sent_back_as_it_came(ask, answer):
    first = ask(modalities=["text", "image"], seed=1).choices[0].message
    said = answer([*HELLO, first.model_dump(), {"role": "user", "content": "Again."}])
    colour = pixels_of(first.images[0])[0, 0].tolist()
    assert said.splitlines() == [
        "user: Hello.",
        "assistant: user: Hello.",
        f"assistant: <64x48 {colour}>",
        "user: Again.",
    ]


def test_labels_are_taken(ask):
    assert ask(user="me", metadata={"run": "1"}, store=False).choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"top_p": 0.5}, "top_p", "unknown field"),
        ({"tools": []}, "tools", "unknown field"),
        ({"frequency_penalty": 0.0}, "frequency_penalty", "unknown field"),
        ({"logprobs": True}, "logprobs", "unknown field"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unknown field"),
        ({"extra_body": {"stepz": 3}}, "stepz", "did you mean 'steps'"),
        ({"store": True}, "store", "must be False"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 9}, "n", "less than or equal to 8"),
        ({"seed": 2**63}, "seed", "at most 9223372036854775807"),
        ({"seed": 2**63, "n": 2}, "seed", "at most 9223372036854775807"),
        ({"seed": -1}, "seed", "at least 0"),
        ({"temperature": 3.0}, "temperature", "at most 2"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "the same limit"),
        ({"stop": ""}, "stop", "none of them empty"),
        ({"stop": ["a", ""]}, "stop", "none of them empty"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"modalities": ["audio"]}, "modalities", "makes text, image"),
        ({"modalities": []}, "modalities", "must not be empty"),
        ({"audio": {"format": "wav", "voice": "a"}}, "audio", "'modalities' has none"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "'stream' is not true"),
        ({"extra_body": {"width": 17}}, "width", "multiple of 16"),
        ({"extra_body": {"temperature": None}}, "temperature", "null"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "must be one of"),
        ({"messages": [{"content": "x"}]}, "messages.0.role", "must be one of"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "required"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "a text or a list"),
        ({"messages": [{"role": "user", "content": "  "}]}, "messages.0.content.text", "must hold some text"),
        ({"messages": [{"role": "user", "content": []}]}, "messages", "must hold something"),
        ({"messages": [{"role": "assistant", "content": ""}]}, "messages", "must hold something"),
        ({"messages": [{"role": "user", "content": "x", "name": "a"}]}, "messages.0.name", "unknown field"),
        ({"messages": [{"role": "user", "content": "x", "images": []}]}, "messages.0.images", "unknown field"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content.0", "'type'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
            "messages.0.content.0.type",
            "must be one of text, image_url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "messages.0.content.0.image_url",
            "",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_field(refusal, fields, param, hint):
    found, message = refusal(fields.pop("messages", HELLO), **fields)
    assert (found, hint in message) == (param, True), (found, message)


def test_high_detail_is_refused_since_it_has_no_effect(refusal):
    part = picture(image_file(RED))
    part["image_url"]["detail"] = "high"
    assert refusal([{"role": "user", "content": [part]}])[0] == "messages.0.content.0.image_url.detail"


def test_media_that_the_model_does_not_take_are_refused(refusal):
    clip = {"type": "video_url", "video_url": {"url": url_of(clip_file(moving()), "video/mp4")}}
    found, message = refusal([{"role": "user", "content": [clip]}])
    assert found == "messages.0.content.0"
    assert "takes text, image, not video" in message


def test_model_without_the_route_is_refused_with_those_that_have_it(http):
    reply = http.post("/v1/chat/completions", json={"model": "mute", "messages": HELLO})
    assert reply.status_code == 400
    assert "models that do: talker" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "/etc/passwd",
        "http://169.254.169.254/latest/meta-data",
        "https://example.com/a.png",
        "ftp://example.com/a.png",
        "http://[::1",
        "",
        "data:image/png,abc",
        "data:image/png;base64",
        "data:image/png;base64,?!",
        "data:image/png;base64,",
        url_of(b"just text"),
    ],
)
def test_addresses_and_what_is_no_picture_are_refused(refusal, address):
    found, _ = refusal([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": address}}]}])
    assert found == "messages.0.content.0.image_url.url"


def test_a_picture_that_is_cut_short_is_refused(refusal):
    file = image_file(np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8), "jpeg")
    found, message = refusal(shown(file[: len(file) // 2]))
    assert found == "messages.0.content.0.image_url.url"
    assert "cannot be decoded" in message


def test_too_many_pictures_are_refused_with_the_limit(refusal):
    found, message = refusal([{"role": "user", "content": [picture(image_file(RED))] * 33}])
    assert found == "messages.0.content.32.image_url.url"
    assert "more than the 32" in message


def saved(image, format, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def animated():
    frames = [PIL.Image.new("P", (4, 2), color) for color in (0, 1)]
    for frame in frames:
        frame.putpalette([255, 0, 0, 0, 0, 255])
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


def turned():
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # the upper left corner is shown at the upper right
    return saved(PIL.Image.new("RGB", (8, 2), (0, 0, 255)), "PNG", exif=exif)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (image_file(RED[:1, :1]), "<1x1 [255, 0, 0]>"),
        (image_file(np.broadcast_to(RED[:1, :1], (1, 20000, 3)).copy()), "<20000x1 [255, 0, 0]>"),
        (saved(PIL.Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100), "<8x8 [255, 0, 0]>"),
        (saved(PIL.Image.new("RGBA", (4, 2), (255, 0, 0, 0)), "PNG"), "<4x2 [255, 255, 255]>"),
        (animated(), "<4x2 [255, 0, 0]>"),
        (turned(), "<2x8 [0, 0, 255]>"),
    ],
    ids=["1x1", "20000x1", "cmyk", "alpha", "animation", "exif"],
)
def test_odd_pictures_are_seen_as_they_look(answer, data, line):
    assert answer(shown(data)) == f"user: {line}"


def test_client_that_leaves_a_stream_cancels_all_its_requests(ask, painter, eventually):
    stream = ask(n=2, modalities=["image"], stream=True, extra_body=SLOW)
    next(stream)
    assert painter.open_requests == 2
    stream.close()
    assert eventually(lambda: painter.open_requests == 0)


def test_client_that_leaves_before_the_whole_answer_cancels(painter_client, painter, eventually):
    with pytest.raises(openai.APITimeoutError):
        painter_client.with_options(timeout=0.3).chat.completions.create(
            model="toy-painter", messages=HELLO, modalities=["image"], n=2, extra_body=SLOW
        )
    assert eventually(lambda: painter.open_requests == 0)


def test_node_that_fails_is_a_500_and_in_a_stream_an_error(ask):
    fields = {"modalities": ["image"], "extra_body": {"fail_at": 1}}
    with pytest.raises(openai.InternalServerError, match="painter"):
        ask(**fields)
    with pytest.raises(openai.APIError, match="painter"):
        list(ask(**fields, stream=True))


def talk(http, **fields):
    reply = http.post("/v1/chat/completions", json={"model": "talker", "messages": HELLO, **fields})
    assert reply.status_code == 200, reply.text
    return reply


def test_model_that_also_makes_text_is_asked_for_text_alone(http, service):
    talk(http)
    assert service.seen[-1]["outputs"] == {"text"}


def test_audio_comes_with_its_transcript_in_the_format_asked_for(http, service, tone):
    service.script = [Text("Hel"), *tone(2), Text("lo.")]
    reply = talk(http, modalities=["text", "audio"], audio={"format": "wav", "voice": "leo"}).json()
    message = reply["choices"][0]["message"]
    assert service.seen[-1]["params"]["voice"] == "leo"
    assert message["content"] is None
    assert message["audio"]["transcript"] == "Hello."
    assert message["audio"]["id"].startswith("audio-")
    assert base64.b64decode(message["audio"]["data"]).startswith(b"RIFF")


def test_streamed_audio_is_one_body_in_deltas(http, service, tone, pcm):
    pieces = tone(3)
    service.script = [Text("Hel"), pieces[0], Text("lo."), *pieces[1:]]
    reply = talk(http, modalities=["text", "audio"], audio={"format": "pcm16"}, stream=True)
    chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    sounds = [audio for chunk in chunks if (audio := chunk["choices"][0]["delta"].get("audio"))]
    assert "".join(audio.get("transcript", "") for audio in sounds) == "Hello."
    assert b"".join(base64.b64decode(audio.get("data", "")) for audio in sounds) == pcm(pieces)
    assert len({audio["id"] for audio in sounds}) == 1
    assert "expires_at" in sounds[-1]


def test_voice_that_is_none_is_refused_by_its_path(http):
    fields = {"modalities": ["audio"], "audio": {"voice": "nobody"}}
    reply = http.post("/v1/chat/completions", json={"model": "talker", "messages": HELLO, **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "audio.voice")


def test_sounds_and_clips_reach_models_that_take_them(http, service):
    tone = encode_audio(np.zeros(2400, np.float32), "wav", 24_000)
    sound = {"type": "input_audio", "input_audio": {"data": base64.b64encode(tone).decode(), "format": "wav"}}
    clip = {"type": "video_url", "video_url": {"url": url_of(clip_file(moving()), "video/mp4")}}
    talk(http, messages=[{"role": "system", "content": [sound, clip]}])
    heard, seen = service.seen[-1]["content"]
    assert isinstance(heard, Audio)
    assert (heard.rate, heard.role) == (24_000, "system")
    assert isinstance(seen, Video)
    assert (seen.frames.shape[0], seen.role) == (6, "system")


def test_sound_of_another_format_than_it_says_is_refused(http):
    tone = base64.b64encode(encode_audio(np.zeros(2400, np.float32), "flac", 24_000)).decode()
    sound = {"type": "input_audio", "input_audio": {"data": tone, "format": "wav"}}
    reply = http.post(
        "/v1/chat/completions", json={"model": "talker", "messages": [{"role": "user", "content": [sound]}]}
    )
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "messages.0.content.0.input_audio.format"


def test_held_back_text_comes_before_a_picture(http, service):
    service.script = [Text("EN"), Progress(1, 1), Image(RED), Text("D")]
    reply = talk(http, modalities=["text", "image"], stop="END", stream=True)
    chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [sorted(delta) for delta in deltas] == [
        ["content", "progress", "role"],
        ["content"],
        ["images"],
        ["content"],
        [],
    ]
    assert [delta["content"] for delta in deltas if "content" in delta] == ["", "EN", "D"]


@pytest.mark.parametrize("stream", [False, True])
def test_request_that_the_server_refuses_has_its_own_status(http, service, stream):
    service.script = [Overloaded("too many requests", retry_after=3.0)]
    reply = http.post("/v1/chat/completions", json={"model": "talker", "messages": HELLO, "stream": stream})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")


def test_answer_without_anything_is_empty_and_streams_its_end(http, service):
    assert talk(http).json()["choices"][0]["message"]["content"] == ""
    chunks = [json.loads(line[6:]) for line in talk(http, stream=True).text.splitlines() if line.startswith("data: {")]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "stop"]


def test_failure_of_one_choice_ends_the_others(http, service, eventually, failure):
    service.script = [0.2, NodeFailed("node 'decoder' failed")]
    reply = http.post("/v1/chat/completions", json={"model": "talker", "messages": HELLO, "n": 3})
    assert reply.status_code == 500
    assert eventually(lambda: not service.running)
