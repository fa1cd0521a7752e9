"""Clients that stay connected and take nothing of their response."""

import json
import socket
import threading

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mstar_core.server.settings import ServerSettings
from mstar_core.testing.server import http_server

SPEECH = "/v1/audio/speech"
SAY = {"model": "speaker", "input": "Hello.", "response_format": "pcm"}
SMALL = 4096
"""Bytes of a client's receive buffer: the rest of a body waits on the server's side."""


@pytest.fixture(scope="module")
def url(shared_service):
    with http_server(shared_service, ServerSettings(port=0, drain_s=1, stall_s=0.5)) as url:
        yield url


@pytest.fixture
def connect(url):
    """A socket with a small buffer on which a request was sent."""

    def go(path, fields, buffer=SMALL):
        data = json.dumps(fields).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.settimeout(10)
        connection.connect((httpx.URL(url).host, httpx.URL(url).port))
        connection.sendall(head.encode() + b"\r\n" + data)
        return connection

    return go


def stalled(http):
    """How many speech responses were cut because nobody read them."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    cut = [each for family in families for each in family.samples if each.name == "mstar_http_responses_cut_total"]
    return sum(each.value for each in cut if each.labels == {"route": SPEECH, "code": "stalled"})


@pytest.mark.parametrize("mode", [{}, {"stream": True}, {"stream_format": "sse"}], ids=["whole", "stream", "events"])
def test_client_that_reads_nothing_is_cut_off(http, service, connect, eventually, tone, mode):
    before = stalled(http)
    service.script = tone(1, seconds=1) * 300  # 14 MB: more than the sockets hold
    with connect(SPEECH, SAY | mode) as connection:
        assert eventually(lambda: stalled(http) == before + 1, 20)
        received = b"".join(iter(lambda: connection.recv(2**20), b""))
    assert len(received) < 14e6
    assert not service.running


@pytest.mark.parametrize("mode", [{"stream": True}, {"stream_format": "sse"}], ids=["stream", "events"])
def test_request_of_a_client_that_reads_nothing_is_cancelled(service, connect, eventually, tone, mode):
    service.script = [*tone(1, seconds=1) * 300, 60]
    with connect(SPEECH, SAY | mode):
        assert eventually(lambda: service.cancelled, 20)
        assert eventually(lambda: not service.running)


def test_client_that_reads_slowly_gets_the_whole_body(service, connect, tone, pcm):
    service.script = tone(30, seconds=1)
    whole = pcm(service.script)
    pause = threading.Event()
    with connect(SPEECH, SAY, buffer=64_000) as connection:
        received = connection.recv(SMALL)
        length = received.index(b"\r\n\r\n") + 4 + len(whole)
        while len(received) < length:
            received += connection.recv(96_000, socket.MSG_WAITALL)
            pause.wait(0.1)  # 15 times: longer in all than a client may take nothing
    assert received.endswith(whole)
    assert not service.cancelled


def test_client_that_waits_for_output_is_not_cut_off(http, service, tone, pcm):
    service.script = [1.0, *tone(1)]
    assert http.post(SPEECH, json=SAY).content == pcm(service.script[1:])
