import json
import socket
import threading

import httpx
import pytest

SPEECH = "/v1/audio/speech"
SAY = {"model": "speaker", "input": "Hello.", "response_format": "pcm"}
MODES = [{}, {"stream": True}, {"stream_format": "sse"}]
LONG = 60


@pytest.fixture
def connect(url):
    """A socket on which a request was sent."""
    address = (httpx.URL(url).host, httpx.URL(url).port)

    def go(path, fields):
        data = json.dumps(fields).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        connection = socket.create_connection(address, timeout=10)
        connection.sendall(head.encode() + b"\r\n" + data)
        return connection

    return go


@pytest.mark.parametrize("mode", MODES)
def test_client_that_leaves_before_the_first_output_cancels(service, connect, eventually, mode):
    service.script = [LONG]
    with connect(SPEECH, SAY | mode):
        assert eventually(lambda: service.running, 5)
    assert eventually(lambda: not service.running)
    assert len(service.cancelled) == 1


@pytest.mark.parametrize("mode", MODES[1:])
def test_client_that_leaves_after_one_piece_cancels(service, connect, eventually, tone, mode):
    service.script = [*tone(1), LONG]
    with connect(SPEECH, SAY | mode) as connection:
        assert connection.recv(1000)
    assert eventually(lambda: not service.running)


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_generate_cancels(service, connect, eventually, tone, stream):
    service.script = [*tone(1), LONG]
    with connect("/generate", {"model": "everything", "input": "Hi.", "stream": stream}):
        assert eventually(lambda: service.running, 5)
    assert eventually(lambda: not service.running)


def test_fifty_clients_that_leave_at_once_all_cancel(service, connect, eventually, tone):
    service.script = [*tone(1), LONG]
    connections = [connect(SPEECH, SAY | {"stream": True}) for _ in range(50)]
    for connection in connections:
        connection.recv(1000)
    for connection in connections:
        connection.close()
    assert eventually(lambda: not service.running)
    assert len(service.cancelled) == 50


def test_client_that_does_not_read_and_leaves_cancels(service, connect, eventually, tone):
    service.script = [*tone(1, seconds=1) * 200, LONG]  # 9.6 MB: more than the sockets hold
    with connect(SPEECH, SAY | {"stream": True}):
        assert eventually(lambda: service.running, 5)
        threading.Event().wait(0.3)
    assert eventually(lambda: not service.running)


def test_complete_request_is_not_cancelled(http, service, tone):
    service.script = tone()
    for mode in MODES:
        http.post(SPEECH, json=SAY | mode)
    assert not service.cancelled


def test_client_that_leaves_while_it_sends_the_body_starts_nothing(service, url, http):
    with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port)) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        connection.sendall(b"Content-Length: 100\r\n\r\n{")
    assert http.get("/health").status_code == 200
    assert not service.seen


def test_departure_is_counted_as_499(http, service, connect, eventually):
    def departures():
        line = 'mstar_http_requests_total{method="POST",route="/v1/audio/speech",status="499"}'
        counts = [each.rpartition(" ")[2] for each in http.get("/metrics").text.splitlines() if each.startswith(line)]
        return float(counts[0]) if counts else 0.0

    before = departures()
    service.script = [LONG]
    with connect(SPEECH, SAY):
        assert eventually(lambda: service.running, 5)
    assert eventually(lambda: departures() == before + 1)
