"""A worker is killed while a request is in any of its phases: it ends as unavailable, and the next one is fine."""

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mstar_core.errors import Unavailable
from mstar_core.wire.messages import EMIT_WINDOW

PLACES = 2
ENDLESS = {"items": 100_000, "max_items": 100_000}
NOTICED_S = 5.0
"""Whoever launched a worker notices its end at once; its silence would be noticed after twice as long."""


@pytest.fixture(scope="module")
def shared(serve, eventually):
    """A server that runs two requests at once and lets others wait, and what its processes hold when none is there.

    It has lost a worker before, since it is then that the supervisor first talks to the Conductor.
    """
    with serve({"models": {"scripted": {"running": PLACES}}}) as server:
        server.kill_and_wait("worker reading")
        assert server.speech().status_code == 200
        assert eventually(lambda: not server.unrest())
        yield server, server.footprints()


@pytest.fixture
def server(shared, pcm, eventually):
    """Whatever a test does to the server, it is whole and as before afterwards."""
    server, before = shared
    yield server
    assert eventually(server.ready)
    assert server.speech(items=5, seed=9).content == pcm(5, seed=9)
    assert eventually(lambda: not server.unrest()), server.unrest()
    assert eventually(lambda: not server.growth(before)), server.growth(before)


def runs(server, walk):
    return server.metric("mstar_batch_calls_total", walk=walk)


def in_the_queue(server, eventually):
    """It waits for one of those that run to end."""
    for _ in range(PLACES):
        server.submit(**ENDLESS)
    ticket = server.submit()
    assert eventually(lambda: server.metric("mstar_requests_waiting") == 1)
    return ticket


def in_a_loop_of_another_worker(server, eventually):
    before = runs(server, "count")
    ticket = server.submit(**ENDLESS, rounds=10_000)
    assert eventually(lambda: runs(server, "count") > before)
    return ticket


def before_the_first_chunk(server, eventually):
    before = runs(server, "write")
    ticket = server.submit(**ENDLESS, delay_ms=500)
    assert eventually(lambda: runs(server, "write") > before)
    return ticket


def while_streaming(server, eventually):
    ticket = server.submit(**ENDLESS, delay_ms=2)
    next(iter(ticket))
    return ticket


def with_a_full_buffer(server, eventually):
    """The writer waits for room while the speaker runs."""
    before = runs(server, "write")
    ticket = server.submit(**ENDLESS, slow_speaker_ms=500)
    assert eventually(lambda: runs(server, "write") >= before + 8)
    return ticket


def with_nobody_reading(server, eventually):
    """The speaker waits for its client."""
    ticket = server.submit(**ENDLESS)
    assert eventually(lambda: ticket.waiting >= EMIT_WINDOW)
    return ticket


def at_the_last_emit(server, eventually):
    """Everything is written; the speaker speaks what is left."""
    ticket = server.submit(items=6, slow_speaker_ms=500)
    next(iter(ticket))
    return ticket


@pytest.mark.parametrize(
    ("reach", "worker"),
    [
        (in_the_queue, "reading"),
        (in_a_loop_of_another_worker, "reading"),
        (before_the_first_chunk, "writing"),
        (while_streaming, "speaking"),
        (with_a_full_buffer, "speaking"),
        (with_nobody_reading, "writing"),
        (at_the_last_emit, "speaking"),
    ],
)
def test_a_request_ends_as_unavailable_in_whatever_phase_a_worker_is_killed(server, eventually, reach, worker):
    ticket = reach(server, eventually)
    killed = time.monotonic()
    server.kill(f"worker {worker}")
    with pytest.raises(Unavailable) as raised:
        list(ticket)
    assert time.monotonic() - killed < NOTICED_S
    assert worker in raised.value.message
    assert "SIGKILL" in raised.value.message
    assert raised.value.retry_after
    assert eventually(lambda: not server.ready())


def test_a_worker_that_is_killed_while_it_loads_is_started_again(server, eventually):
    """Who asks all parties for their metrics meanwhile may leave nothing behind of a worker that was never there."""
    known = mailboxes()
    server.kill("worker writing")
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            assert eventually(lambda known=known: mailboxes() - known)
            known = mailboxes()
            asking = pool.submit(server.metrics)
            time.sleep(0.1)
            server.kill("worker writing")
            asking.result()


def mailboxes() -> set[str]:
    """The sockets of workers, each of which has a new one with every start."""
    directories = Path(tempfile.gettempdir()).glob(f"mstar-{os.getpid()}-*")
    return {path.name for directory in directories for path in directory.glob("worker-*")}


@pytest.mark.parametrize("others", [(), ("worker speaking",), ("worker reading", "worker writing", "worker speaking")])
def test_a_conductor_that_is_killed_alone_or_with_workers_is_replaced(server, eventually, others):
    ticket = while_streaming(server, eventually)
    server.kill("conductor", *others)
    with pytest.raises(Unavailable):
        list(ticket)
    assert eventually(lambda: not server.ready())
