"""Requests as multipart/form-data: a field `request` with the JSON, and files that it names."""

import json

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from mstar_core.spec.content import Audio, Image, Tensor, Video
from mstar_core.testing.clips import clip_file, image_file, moving

ASK = {"model": "everything"}


def post(http, request, files=None, **options):
    text = request if isinstance(request, str) else json.dumps(request)
    return http.post("/generate", data={"request": text}, files=files or {"unused": b""}, **options)


def error_of(answer, status=400):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def test_parts_name_files_of_the_form(http, service, tone):
    from mstar_core.media import encode_audio

    (sound,) = tone(1)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    files = {
        "clip": ("any name.exe", clip_file(moving(2)), "text/plain"),
        "picture": image_file(moving(1)[0]),
        "sound": encode_audio(sound.samples, "flac", 24_000),
        "pose": save({"pose": array}),
        "raw": array.tobytes(),
    }
    parts = [
        {"type": "video", "file": "clip"},
        {"type": "image", "file": "picture"},
        {"type": "audio", "file": "sound"},
        {"type": "tensor", "name": "pose", "file": "pose"},
        {"type": "tensor", "name": "again", "file": "pose", "key": "pose"},
        {"type": "tensor", "name": "raw", "dtype": "float32", "shape": [2, 3], "file": "raw"},
    ]
    answer = post(http, ASK | {"input": parts}, files)
    assert answer.status_code == 200, answer.text
    contents = service.seen[-1]["content"]
    assert [type(piece) for piece in contents] == [Video, Image, Audio, Tensor, Tensor, Tensor]
    assert all(np.array_equal(piece.array, array) for piece in contents[3:])


def test_form_without_files_is_the_request(http, service):
    boundary = b'--x\r\nContent-Disposition: form-data; name="request"\r\n\r\n'
    body = boundary + json.dumps(ASK | {"input": "Hi."}).encode() + b"\r\n--x--\r\n"
    answer = http.post("/generate", content=body, headers={"content-type": 'multipart/form-data; boundary="x"'})
    assert answer.status_code == 200, answer.text


def test_file_that_is_not_there_is_named_with_those_that_are(http):
    error = error_of(post(http, ASK | {"input": [{"type": "video", "file": "clp"}]}, {"clip": b"x"}))
    assert error["param"] == "input.0.file"
    assert error["message"] == "'input.0.file': the request has no file 'clp' (did you mean 'clip'?); there are: clip"


def test_file_that_nothing_names_is_refused(http, service):
    error = error_of(post(http, ASK | {"input": "Hi."}, {"clip": b"x"}))
    assert (error["param"], error["message"]) == ("clip", "nothing in the request names the file 'clip'")
    assert not service.seen


@pytest.mark.parametrize(
    ("request_text", "told"),
    [("", "not valid JSON"), ("[]", "must be a JSON object"), ("{", "not valid JSON")],
)
def test_request_field_that_is_no_object_is_refused(http, request_text, told):
    assert told in error_of(post(http, request_text))["message"]


def test_form_without_the_request_field_is_refused_with_what_it_has(http):
    error = error_of(http.post("/generate", files={"clip": b"x"}))
    assert (error["param"], "it has: clip" in error["message"]) == ("request", True)


PART = b'--x\r\nContent-Disposition: form-data; name="request"\r\n\r\n{}\r\n'


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        ("multipart/form-data", PART + b"--x--\r\n", "must name its boundary"),
        ("multipart/form-data; boundary=x", b"", "cut short"),
        ("multipart/form-data; boundary=x", PART, "cut short"),
        ("multipart/form-data; boundary=x", PART[:40], "cut short"),
        ("multipart/form-data; boundary=x", b"no form at all", "not valid multipart"),
        ("multipart/form-data; boundary=x", PART + PART + b"--x--\r\n", "two fields 'request'"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n{}\r\n--x--\r\n", "with a name"),
        (
            "multipart/form-data; boundary=x",
            b"--x\r\nContent-Disposition: form-data\r\n\r\n{}\r\n--x--\r\n",
            "with a name",
        ),
        ("multipart/form-data; boundary=" + "x" * 300, PART, "multipart"),
    ],
)
def test_body_that_is_no_whole_form_is_refused(http, service, kind, body, told):
    assert told in error_of(http.post("/generate", content=body, headers={"content-type": kind}))["message"]
    assert not service.seen


def test_form_of_too_many_fields_is_413(http):
    error_of(post(http, ASK | {"input": "Hi."}, {f"f{number}": b"x" for number in range(80)}), 413)


def test_form_over_the_limit_is_413_while_it_comes(http, service, settings):
    error = error_of(post(http, ASK | {"input": "Hi."}, {"clip": b"x" * settings.max_body_bytes}), 413)
    assert error["code"] == "too_large"
    assert not service.seen


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_form_of_a_page_of_another_origin_is_refused(http, service, origin):
    error = error_of(post(http, ASK | {"input": "Hi."}, headers={"origin": origin}))
    assert "other origins" in error["message"]
    assert not service.seen


def test_form_of_a_page_of_this_origin_is_taken(http, service, url):
    files = {"picture": image_file(moving(1)[0])}
    request = ASK | {"input": [{"type": "image", "file": "picture"}]}
    assert post(http, request, files, headers={"origin": url}).status_code == 200


def test_speech_takes_no_form(http):
    answer = http.post("/v1/audio/speech", files={"request": b"{}"})
    assert "application/json" in error_of(answer)["message"]


def test_form_is_read_in_pieces_of_any_size(url, service):
    picture = image_file(moving(1)[0])
    head = b'--x\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\nContent-Type: image/png\r\n\r\n'
    ask = json.dumps(ASK | {"input": [{"type": "image", "file": "picture"}]}).encode()
    tail = b'\r\n--x\r\nContent-Disposition: form-data; name="request"\r\n\r\n' + ask + b"\r\n--x--\r\n"
    body = head + picture + tail
    for size in (1, 7, 4096):
        pieces = (body[start : start + size] for start in range(0, len(body), size))
        headers = {"content-type": "multipart/form-data; boundary=x"}
        assert httpx.post(f"{url}/generate", content=pieces, headers=headers).status_code == 200
    assert len(service.seen) == 3
