import base64
import io
import json
import wave

import av
import numpy as np
import pytest
from safetensors.numpy import load

from mstar_core.errors import DeadlineExceeded
from mstar_core.media import encode_audio
from mstar_core.spec.content import Audio, Image, Tensor, Text, Video
from mstar_core.testing.clips import clip_file, image_file, moving

ASK = {"model": "everything", "input": "Hello."}


def data_of(array):
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def array_of(part):
    return np.frombuffer(base64.b64decode(part["data"]), np.dtype(part["dtype"]).newbyteorder("<")).reshape(
        part["shape"]
    )


def events(text):
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    return [(name, json.loads(data)) for name, data in (b.removeprefix("event: ").split("\ndata: ") for b in blocks)]


def sent(http, service, *parts):
    """What the model gets for these parts."""
    answer = http.post("/generate", json=ASK | {"input": list(parts)})
    assert answer.status_code == 200, answer.text
    return service.seen[-1]["content"]


def refused(http, **fields):
    answer = http.post("/generate", json=ASK | fields)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def test_answer_has_id_model_outputs_reason_and_usage(http, service):
    service.script = [Text("Good "), Text("day."), "length"]
    answer = http.post("/generate", json=ASK, headers={"x-request-id": "a-1"})
    assert answer.json() == {
        "id": "a-1",
        "model": "everything",
        "finish_reason": "length",
        "usage": {"input_tokens": 3, "output_tokens": 7, "total_tokens": 10},
        "outputs": [{"type": "text", "text": "Good day."}],
    }


def test_model_that_gives_nothing_has_no_outputs(http):
    answer = http.post("/generate", json=ASK).json()
    assert (answer["outputs"], answer["finish_reason"]) == ([], "stop")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
def test_tensor_goes_in_and_comes_out_with_dtype_and_shape(http, service, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    service.script = [Tensor("pose", array)]
    part = {"type": "tensor", "name": "pose", "dtype": dtype, "shape": [2, 3], "data": data_of(array)}
    answer = http.post("/generate", json=ASK | {"input": [part]}).json()
    assert answer["outputs"] == [part]
    (given,) = service.seen[0]["content"]
    assert (given.name, given.array.dtype, given.array.tolist()) == ("pose", array.dtype, array.tolist())


def test_big_endian_and_strided_tensors_come_out_little_endian_in_c_order(http, service):
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    service.script = [Tensor("x", array)]
    (part,) = http.post("/generate", json=ASK).json()["outputs"]
    assert (part["dtype"], array_of(part).tolist()) == ("int32", array.tolist())


def test_pieces_of_audio_come_out_as_one(http, service, tone):
    service.script = tone()
    (part,) = http.post("/generate", json=ASK).json()["outputs"]
    assert (part["type"], part["rate"]) == ("audio", 24000)
    assert np.array_equal(array_of(part), np.concatenate([piece.samples for piece in service.script]))


def test_text_and_audio_made_at_once_are_two_outputs_and_a_picture_parts_texts(http, service, tone):
    first, second = tone(2)
    picture = Image(np.zeros((2, 2, 3), np.uint8))
    service.script = [Text("a"), first, Text("b"), second, picture, Text("c")]
    kinds = [part["type"] for part in http.post("/generate", json=ASK).json()["outputs"]]
    assert kinds == ["text", "audio", "image", "text"]


def test_images_and_clips_come_out_as_they_go_in(http, service, tone):
    (sound,) = tone(1)
    frames = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    service.script = [Image(frames[0]), Video(frames, 12.5, sound)]
    outputs = http.post("/generate", json=ASK).json()["outputs"]
    image, video = sent(http, service, *outputs)
    assert np.array_equal(image.pixels, frames[0])
    assert (video.rate, video.audio.rate) == (12.5, 24000)
    assert np.array_equal(video.frames, frames)
    assert np.array_equal(video.audio.samples, sound.samples)


def test_audio_goes_in_raw_or_as_a_file(http, service, tone):
    (sound,) = tone(1)
    raw = {"type": "audio", "rate": 24000, "shape": [len(sound.samples)], "data": data_of(sound.samples)}
    file = {"type": "audio", "data": base64.b64encode(encode_audio(sound.samples, "flac", 24000)).decode()}
    exact, decoded = sent(http, service, raw, file)
    assert np.array_equal(exact.samples, sound.samples)
    assert decoded.rate == 24000
    assert np.allclose(decoded.samples, sound.samples, atol=1e-4)


def test_audio_format_gives_a_file(http, service, tone):
    service.script = tone()
    (part,) = http.post("/generate", json=ASK | {"audio_format": "wav"}).json()["outputs"]
    assert (part["format"], part["rate"]) == ("wav", 24000)
    with wave.open(io.BytesIO(base64.b64decode(part["data"]))) as file:
        assert file.getnframes() == 4 * 2400


def test_streamed_audio_in_a_format_is_one_file(http, service, tone):
    service.script = [Text("a"), *tone()]
    answer = http.post("/generate", json=ASK | {"audio_format": "opus", "stream": True})
    *outputs, end = events(answer.text)
    assert outputs[0] == ("output", {"type": "text", "text": "a"})
    body = b"".join(base64.b64decode(part["data"]) for _, part in outputs[1:])
    with av.open(io.BytesIO(body)) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) == pytest.approx(0.4 * 48000, abs=1000)
    assert end[0] == "end"


def test_stream_has_an_event_for_each_piece_and_then_the_end(http, service):
    service.script = [Text("Good "), Text("day."), Tensor("x", np.zeros(2, np.float32)), "length"]
    answer = http.post("/generate", json=ASK | {"stream": True}, headers={"x-request-id": "a-1"})
    *outputs, (last, end) = events(answer.text)
    assert [name for name, _ in outputs] == ["output"] * 3
    assert [part["type"] for _, part in outputs] == ["text", "text", "tensor"]
    assert last == "end"
    assert (end["id"], end["model"], end["finish_reason"]) == ("a-1", "everything", "length")


def test_stream_that_fails_ends_with_an_error_event(http, service, failure):
    service.script = [Text("Good "), failure]
    *_, (name, data) = events(http.post("/generate", json=ASK | {"stream": True}).text)
    assert (name, data["error"]["code"]) == ("error", "node_failed")


def test_model_gets_the_outputs_and_parameters_asked_for(http, service):
    http.post("/generate", json=ASK | {"outputs": ["text"], "parameters": {"temperature": 1, "seed": 0}})
    assert service.seen[0]["outputs"] == {"text"}
    assert service.seen[0]["params"] == {"temperature": 1.0, "seed": 0}


@pytest.mark.parametrize(("given", "wanted"), [({}, None), ({"timeout": 2}, 2.0), ({"timeout": 0.25}, 0.25)])
def test_timeout_reaches_the_service_in_seconds(http, service, given, wanted):
    http.post("/generate", json=ASK | given)
    assert service.seen[0]["timeout"] == wanted


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_timeout_that_is_not_finite_is_refused(http, service, number):
    body = json.dumps(ASK)[:-1] + f', "timeout": {number}}}'
    answer = http.post("/generate", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert not service.seen


def test_request_that_misses_its_deadline_is_504(http, service):
    service.script = [DeadlineExceeded("the request has not ended within 2 s")]
    answer = http.post("/generate", json=ASK | {"timeout": 2})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"input": ""}, "input", "must hold something"),
        ({"input": "  "}, "input", "must hold something"),
        ({"input": []}, "input", "must hold something"),
        ({"input": None}, "input", "a string or a list"),
        ({"input": {"type": "text"}}, "input", "a string or a list"),
        ({"input": ["text"]}, "input.0", "an object with a 'type'"),
        ({"input": [{"type": "txt"}]}, "input.0.type", "did you mean 'text'"),
        ({"input": [{}]}, "input.0.type", "text, audio, image, video, tensor"),
        ({"input": [{"type": "text", "text": " "}]}, "input.0.text", "some text"),
        ({"input": [{"type": "text", "text": 1}]}, "input.0.text", "string"),
        ({"input": [{"type": "text", "text": "a", "txt": "b"}]}, "input.0.txt", "did you mean 'text'"),
        ({"output": ["text"]}, "output", "did you mean 'outputs'"),
        ({"outputs": []}, "outputs", "must not be empty"),
        ({"outputs": ["sound"]}, "outputs", "text, audio"),
        ({"outputs": "text"}, "outputs", "list"),
        ({"parameters": {"temprature": 1}}, "parameters.temprature", "did you mean 'temperature'"),
        ({"parameters": {"temperature": 9}}, "parameters.temperature", "at most 2"),
        ({"parameters": [1]}, "parameters", "dictionary"),
        ({"stream": 1}, "stream", "boolean"),
        ({"audio_format": "ogg"}, "audio_format", "wav, pcm"),
        ({"request_id": "a b"}, "request_id", "characters"),
        ({"timeout": 0}, "timeout", "greater than 0"),
        ({"timeout": -1.5}, "timeout", "greater than 0"),
        ({"timeout": "5"}, "timeout", "number"),
        ({"timeout": True}, "timeout", "number"),
        ({"timeout": None}, "timeout", "number"),
    ],
)
def test_field_that_cannot_be_is_named(http, service, fields, param, told):
    error = refused(http, **fields)
    assert error["param"] == param
    assert told in error["message"]
    assert not service.seen


@pytest.mark.parametrize(
    ("change", "param", "told"),
    [
        ({"dtype": "float31"}, "dtype", "did you mean 'float32'"),
        ({"dtype": None}, "dtype", "string"),
        ({"shape": [2, -1]}, "shape", "at least 0"),
        ({"shape": [3]}, "data", "takes 12"),
        ({"shape": [2**40, 2**40]}, "data", "holds 8 bytes"),
        ({"shape": [2.0]}, "shape.0", "integer"),
        ({"data": "!"}, "data", "base64"),
        ({"data": "AA"}, "data", "base64"),
        ({"name": None}, "name", "string"),
    ],
)
def test_tensor_that_cannot_be_is_named(http, service, change, param, told):
    part = {"type": "tensor", "name": "x", "dtype": "float32", "shape": [2], "data": data_of(np.zeros(2, np.float32))}
    error = refused(http, input=["a", part | change][1:])
    assert error["param"] == f"input.0.{param}"
    assert told in error["message"]


@pytest.mark.parametrize(
    ("part", "param", "told"),
    [
        ({"type": "audio", "data": "AAAA"}, "data", "not audio that can be read"),
        ({"type": "audio", "data": ""}, "data", "there are none"),
        ({"type": "audio", "rate": 0, "shape": [1], "data": "AAAAAA=="}, "rate", "4000"),
        ({"type": "audio", "rate": 24000, "shape": [0], "data": ""}, "shape", "none 0"),
        ({"type": "audio", "rate": 24000, "shape": [1], "data": "AADAfw=="}, "data", "finite"),
        ({"type": "audio", "rate": 24000, "shape": [1], "data": "AAAAAA==", "dtype": "int16"}, "dtype", "float32"),
        ({"type": "image", "shape": [1, 1, 4], "data": "AAAAAA=="}, "shape", "[n, n, 3]"),
        ({"type": "video", "shape": [1, 1, 1, 3], "data": "AAAA", "rate": 0}, "rate", "greater than 0"),
        ({"type": "video", "shape": [1, 1, 1, 3], "data": "AAAA", "rate": 1, "audio": {}}, "audio.type", "one of"),
        (
            {"type": "video", "shape": [1, 1, 1, 3], "data": "AAAA", "rate": 1, "audio": {"type": "text", "text": "a"}},
            "audio.type",
            "must be 'audio'",
        ),
    ],
)
def test_media_that_cannot_be_are_named(http, part, param, told):
    error = refused(http, input=[part])
    assert error["param"] == f"input.0.{param}"
    assert told in error["message"]


def test_modality_that_the_model_does_not_take_is_refused(http):
    part = {"type": "image", "shape": [1, 1, 3], "data": "AAAA"}
    error = refused(http, model="speaker", input=[part])
    assert (error["param"], error["message"]) == (
        "input.0.type",
        "'input.0.type': model 'speaker' takes text, not image",
    )


def test_audio_format_for_a_model_without_audio_is_refused(http, service):
    card = service.models["speaker"].spec.card
    assert "audio" in card.outputs
    assert refused(http, model="speaker", outputs=["text"])["message"].endswith("model 'speaker' makes audio")


def test_unknown_model_is_404_with_the_names(http):
    answer = http.post("/generate", json=ASK | {"model": "everthing"})
    assert answer.status_code == 404
    assert "did you mean 'everything'" in answer.json()["error"]["message"]


def test_audio_of_no_kind_is_no_output_event(http, service):
    service.script = [Audio(np.zeros(0, np.float32), 24000)]
    names = [
        name for name, _ in events(http.post("/generate", json=ASK | {"stream": True, "audio_format": "pcm"}).text)
    ]
    assert names == ["end"]


FILES = {"video": clip_file(moving(4)), "image": image_file(moving(1)[0])}


def test_clips_and_pictures_go_in_as_files(http, service):
    video, few, image = sent(
        http,
        service,
        {"type": "video", "data": base64.b64encode(FILES["video"]).decode()},
        {"type": "video", "data": base64.b64encode(FILES["video"]).decode(), "frames": 2},
        {"type": "image", "data": base64.b64encode(FILES["image"]).decode()},
    )
    assert (video.frames.shape, video.rate, few.frames.shape) == ((4, 32, 48, 3), 10.0, (2, 32, 48, 3))
    assert np.array_equal(image.pixels, moving(1)[0])


@pytest.mark.parametrize("kind", ["video", "image"])
@pytest.mark.parametrize("data", [b"", b"text named .mp4", FILES["video"][:60], FILES["image"][:60]])
def test_file_that_is_none_is_named(http, kind, data):
    error = refused(http, input=[{"type": kind, "data": base64.b64encode(data).decode()}])
    assert error["param"] == "input.0.data"


def test_lists_of_numbers_are_tensors(http, service):
    floats, integers, halves = sent(
        http,
        service,
        {"type": "tensor", "name": "a", "data": [[1, 2.5], [3, 4]]},
        {"type": "tensor", "name": "b", "dtype": "int64", "shape": [2], "data": [1, -2]},
        {"type": "tensor", "name": "c", "dtype": "bfloat16", "data": [0.5]},
    )
    assert (floats.array.dtype, floats.array.tolist()) == (np.float32, [[1, 2.5], [3, 4]])
    assert (integers.array.dtype, integers.array.tolist()) == (np.int64, [1, -2])
    assert halves.array.dtype == np.float32


def test_bfloat16_values_come_in_as_float32(http, service):
    halves = (np.array([1.5, -2], np.float32).view(np.uint32) >> 16).astype("<u2")
    part = {"type": "tensor", "name": "x", "dtype": "bfloat16", "shape": [2], "data": data_of(halves)}
    (given,) = sent(http, service, part)
    assert (given.array.dtype, given.array.tolist()) == (np.float32, [1.5, -2])


def test_steps_of_a_tensor_are_told_and_are_events_of_their_own(http, service):
    service.script = [Tensor("z", np.zeros(2, np.float32), step) for step in range(2)] + [Tensor("p", np.ones(1))]
    outputs = http.post("/generate", json=ASK).json()["outputs"]
    assert [part.get("step") for part in outputs] == [0, 1, None]
    made = events(http.post("/generate", json=ASK | {"stream": True}).text)
    assert [name for name, _ in made] == ["step", "step", "output", "end"]


def test_answer_as_safetensors_has_audio_and_text_in_its_metadata(http, service, tone):
    service.script = [Text("a"), *tone(2), Tensor("x", np.arange(3)), "length"]
    headers = {"accept": "text/html, application/vnd.safetensors;q=0.9"}
    answer = http.post("/generate", json=ASK | {"audio_format": "wav"}, headers=headers)
    assert load(answer.content)["x"].tolist() == [0, 1, 2]
    header = json.loads(answer.content[8 : 8 + int.from_bytes(answer.content[:8], "little")])["__metadata__"]
    assert header["finish_reason"] == "length"
    assert [part["type"] for part in json.loads(header["outputs"])] == ["text", "audio"]


def test_answer_without_tensors_is_safetensors_too(http, service):
    service.script = [Text("a")]
    answer = http.post("/generate", json=ASK, headers={"accept": "application/octet-stream"})
    assert load(answer.content) == {}
