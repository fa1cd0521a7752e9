"""Media by address: from hosts that the deployer allows, and from nowhere else."""

import http.server
import socket
import threading

import httpx
import numpy as np
import pytest

from mstar_core.errors import ConfigurationError, InvalidRequest, TooLarge
from mstar_core.server.remote import RemoteMedia
from mstar_core.server.settings import ServerSettings
from mstar_core.testing.clips import image_file
from mstar_core.testing.server import http_server

PICTURE = image_file(np.zeros((2, 4, 3), np.uint8))


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers a picture, or what the path says."""

    def do_GET(self):
        kind, _, rest = self.path[1:].partition("/")
        self.send_response({"to": 302, "loop": 302, "missing": 404}.get(kind, 200))
        if kind in ("to", "loop"):
            self.send_header("location", rest.replace("~", "/") if kind == "to" else self.path)
        self.end_headers()
        if kind == "endless":
            try:
                while True:
                    self.wfile.write(bytes(2**16))
            except OSError:
                return
        self.wfile.write(PICTURE)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def media(site):
    return RemoteMedia(hosts=(site, "localhost"), max_bytes=10_000_000, timeout_s=5)


def test_a_conversation_shows_a_picture_of_an_allowed_host(painter, site):
    link = {"type": "image_url", "image_url": {"url": f"http://{site}/a.png"}}
    body = {"model": "toy-painter", "messages": [{"role": "user", "content": [link]}]}
    with http_server(painter, ServerSettings(port=0, media_hosts=(site,))) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == "user: <4x2 [0, 0, 0]>"


def test_an_edit_takes_a_picture_of_an_allowed_host(painter, site):
    body = {"model": "toy-painter", "prompt": "A circle.", "image": f"http://{site}/a.png"}
    with http_server(painter, ServerSettings(port=0, media_hosts=(site,))) as url:
        assert httpx.post(f"{url}/v1/images/edits", json=body).status_code == 200


def refusal(media, url, error=InvalidRequest):
    with pytest.raises(error) as caught:
        media.fetch(url, "image")
    assert caught.value.param == "image"
    return caught.value.message


def test_a_file_of_an_allowed_host_is_fetched(media, site):
    assert media.fetch(f"http://{site}/a.png", "image") == PICTURE
    assert media.read(f"http://{site}/a.png", "image") == PICTURE


def test_a_redirect_within_the_allowed_hosts_is_followed(media, site):
    assert media.fetch(f"http://{site}/to/~a.png", "image") == PICTURE
    assert media.fetch(f"http://{site}/to/http:~~{site}~a.png", "image") == PICTURE


@pytest.mark.parametrize(
    "address",
    ["http:~~169.254.169.254~", "file:~~~etc~passwd", "http:~~127.0.0.1:1~", "http:~~[::1]~", "gopher:~~127.0.0.1~"],
)
def test_a_redirect_to_elsewhere_is_refused(media, site, address):
    refusal(media, f"http://{site}/to/{address}")


def test_redirects_without_end_are_refused(media, site):
    assert "more than 3 redirects" in refusal(media, f"http://{site}/loop")


def test_a_name_that_leads_to_a_private_address_is_refused(media):
    assert "not public" in refusal(media, "http://localhost/a.png")


def test_one_private_address_among_several_is_enough_to_refuse_a_name(monkeypatch):
    def both(host, port, **_):
        return [(2, 1, 6, "", (address, port)) for address in ("93.184.215.14", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert "not public" in refusal(RemoteMedia(hosts=("a.example",), max_bytes=1), "http://a.example/")


@pytest.mark.parametrize(
    "address",
    [
        "http://example.com/a.png",
        "http://localhost:1/a.png",
        "http://127.0.0.1/a.png",
        "http://localhost@169.254.169.254/",
        "http://127.1/",
        "http://0x7f000001/",
        "ftp://localhost/a.png",
        "file:///etc/passwd",
        "/etc/passwd",
        "http://",
        "http://localhost:port/",
    ],
)
def test_addresses_that_are_not_allowed_are_refused(media, address):
    refusal(media, address)


def test_a_port_is_allowed_with_its_host_alone(site):
    host, _, port = site.partition(":")
    assert "only from 127.0.0.1" in refusal(RemoteMedia(hosts=(host,), max_bytes=1), f"http://{host}:{port}/a.png")


def test_a_file_beyond_the_bound_is_given_up(media, site):
    assert "more than the 10000000 bytes" in refusal(media, f"http://{site}/endless", TooLarge)


def test_a_file_that_comes_too_slowly_is_given_up(site):
    media = RemoteMedia(hosts=(site,), max_bytes=2**60, timeout_s=0.2)
    assert "did not come within" in refusal(media, f"http://{site}/endless")


def test_an_answer_that_is_no_file_is_refused(media, site):
    assert "answered 404" in refusal(media, f"http://{site}/missing")


def test_a_host_that_does_not_answer_is_refused():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        site = f"127.0.0.1:{free.getsockname()[1]}"
    assert "cannot be fetched" in refusal(RemoteMedia(hosts=(site,), max_bytes=1), f"http://{site}/")


@pytest.mark.parametrize("host", ["", "http://a.example", "a.example/b", "A.example", "a b"])
def test_a_host_that_is_none_is_a_configuration_error(host):
    with pytest.raises(ConfigurationError, match="a host of media"):
        ServerSettings(media_hosts=(host,))
