import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from mstar_core.errors import ConfigurationError
from mstar_core.server.run import listen, serve, url_of
from mstar_core.server.settings import ServerSettings

SPEECH = "/v1/audio/speech"
SAY = {"model": "speaker", "input": "Hello.", "response_format": "pcm"}


@pytest.fixture
def served(service):
    """Serves in this thread, where signals arrive, while `client(url)` runs in another; gives what it returned."""

    def run(client, **settings):
        lines = []
        ready = threading.Event()

        def announce(line):
            lines.append(line)
            ready.set()

        def act():
            assert ready.wait(10)
            return client(lines[0].rpartition(" ")[2])

        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(act)
            serve(service, ServerSettings(port=0, **settings), announce=announce)
            assert len(lines) == 1
            return lines[0], result.result(10)

    return run


def stop(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_an_idle_server_and_leaves_handlers_and_port_as_they_were(served, number):
    before = signal.getsignal(number)
    line, _ = served(lambda url: stop(number))
    assert signal.getsignal(number) is before
    assert line.startswith("serving speaker, everything on http://127.0.0.1:")
    with socket.create_server(("127.0.0.1", httpx.URL(line.rpartition(" ")[2]).port)):
        pass


def test_first_signal_lets_running_requests_end(served, service, tone, pcm):
    first, second = tone(2)
    service.script = [first, 0.5, second]

    def client(url):
        with httpx.stream("POST", url + SPEECH, json=SAY | {"stream": True}, timeout=10) as answer:
            pieces = answer.iter_raw()
            begun = next(pieces)
            stop()
            return begun + b"".join(pieces)

    _, body = served(client, drain_s=20)
    assert body == pcm([first, second])


def test_no_connection_is_accepted_once_a_signal_came(served, service, tone):
    service.script = [*tone(1), 1.0]

    def client(url):
        with httpx.stream("POST", url + SPEECH, json=SAY | {"stream": True}, timeout=10) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            stop()
            threading.Event().wait(0.4)
            with pytest.raises(httpx.ConnectError):
                httpx.get(url + "/health")
            return list(pieces)

    served(client, drain_s=20)


def test_second_signal_cuts_running_requests_off(served, service, tone, eventually):
    service.script = [*tone(1), 60]

    def client(url):
        with (
            pytest.raises(httpx.TransportError),
            httpx.stream("POST", url + SPEECH, json=SAY | {"stream": True}, timeout=10) as answer,
        ):
            _stop_twice_after_the_first_piece(answer)

    served(client, drain_s=60)
    assert eventually(lambda: not service.running)
    assert len(service.cancelled) == 1


def _stop_twice_after_the_first_piece(answer):
    pieces = answer.iter_raw()
    next(pieces)
    stop()
    threading.Event().wait(0.3)
    stop()
    list(pieces)


def test_request_that_outlasts_the_drain_gets_503(served, service, eventually):
    service.script = [60]

    def client(url):
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(httpx.post, url + SPEECH, json=SAY, timeout=10)
            assert eventually(lambda: service.running, 5)
            stop()
            return answer.result()

    _, answer = served(client, drain_s=1)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert eventually(lambda: not service.running)


def test_port_in_use_is_said_before_anything_is_loaded():
    with listen(ServerSettings(port=0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} is in use: .*another port"):
            listen(ServerSettings(port=port))


def test_host_without_an_address_is_refused():
    with pytest.raises(ConfigurationError, match=r"host 'nowhere\.invalid' has no address"):
        listen(ServerSettings(host="nowhere.invalid"))


def test_address_of_another_machine_is_refused():
    with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1:"):
        listen(ServerSettings(host="192.0.2.1", port=0))


def test_url_of_an_ipv6_listener_has_brackets():
    with listen(ServerSettings(host="::1", port=0)) as listener:
        assert url_of(listener).startswith("http://[::1]:")


def test_open_server_without_keys_warns(served, caplog):
    served(lambda url: stop(), host="0.0.0.0")
    assert any("without API keys" in record.getMessage() for record in caplog.records)
