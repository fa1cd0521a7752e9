import json
import socket

import httpx
import pytest

SPEECH = "/v1/audio/speech"
JSON = {"content-type": "application/json"}
SAY = {"model": "speaker", "input": "Hello."}


def error_of(answer, status):
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    return answer.json()["error"]


@pytest.mark.parametrize("path", [SPEECH, "/generate"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b'{"model": ',
        b'{"model": "speaker", "input": "\xff"}',
        b'{"model": "speaker", "input": "\\ud800"}',
        b'{"model": "speaker", "input": "a", "speed": NaN}',
        b"[" * 50_000,
    ],
)
def test_body_that_is_not_json_is_400(http, path, body):
    error = error_of(http.post(path, content=body, headers=JSON), 400)
    assert "not valid JSON" in error["message"]


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"1"])
def test_body_that_is_no_object_is_400(http, body):
    assert "must be a JSON object" in error_of(http.post(SPEECH, content=body, headers=JSON), 400)["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_body_of_another_content_type_is_400(http, kind):
    headers = {"content-type": kind} if kind else {}
    answer = http.post(SPEECH, content=json.dumps(SAY).encode(), headers=headers)
    assert "application/json" in error_of(answer, 400)["message"]


def test_large_body_is_413_with_and_without_a_length(http, service, settings):
    large = json.dumps(SAY | {"input": "a" * settings.max_body_bytes}).encode()
    pieces = (large[start : start + 1000] for start in range(0, len(large), 1000))
    for content in (large, pieces):
        assert error_of(http.post(SPEECH, content=content, headers=JSON), 413)["code"] == "too_large"
    assert not service.seen


def test_announced_large_body_is_413_before_it_is_sent(url):
    with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port), timeout=5) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        connection.sendall(b"Content-Length: 1000000000000\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_largest_body_is_taken(http, service, settings, tone):
    service.script = tone(1)
    rest = settings.max_body_bytes - len(json.dumps(SAY | {"input": ""}))
    body = json.dumps(SAY | {"input": "a" * rest}).encode()
    assert len(body) == settings.max_body_bytes
    assert http.post(SPEECH, content=body, headers=JSON).status_code == 200


def test_unknown_route_is_404_with_the_nearest(http):
    assert "/v1/audio/speech" in error_of(http.get("/v1/audio/speach"), 404)["message"]


def test_other_method_is_405_with_those_allowed(http):
    answer = http.get(SPEECH)
    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "POST"


def test_page_of_another_origin_gets_no_permission(http):
    answer = http.options(SPEECH, headers={"origin": "http://evil", "access-control-request-method": "POST"})
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]
