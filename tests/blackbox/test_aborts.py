"""Clients that leave, at any time and in any number: work stops, everything comes free, others notice nothing.

That a server is at rest afterwards, with as many ended requests as submitted ones, is checked after every test.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mstar_core.errors import Cancelled

ENDLESS = {"items": 100_000, "max_items": 100_000}

DELAY_MS = 20
RUNS_IN_A_SECOND = 1000 // DELAY_MS


def leave_after_one_piece(server, **fields):
    with server.speaking(**ENDLESS, delay_ms=DELAY_MS, **fields) as answer:
        next(answer.iter_raw())


def at_rest(server):
    return not any(server.held().values())


def test_generation_stops_within_a_second_of_the_client_leaving(server, eventually):
    """A left request may not run to its end: a second holds at most so many runs of its loop."""
    leave_after_one_piece(server)
    left_at = server.runs("write")
    assert eventually(lambda: at_rest(server))
    assert server.runs("write") - left_at <= RUNS_IN_A_SECOND


def test_fifty_clients_that_leave_at_once_free_everything(server, pcm, eventually):
    """No page, slot or tensor may be lost when aborts come in a burst; requests beside them are unharmed."""
    with ThreadPoolExecutor(51) as pool:
        stays = pool.submit(lambda: server.speech(items=30, seed=2, delay_ms=DELAY_MS))
        list(pool.map(lambda code: leave_after_one_piece(server, code=code), range(50)))
        assert stays.result().content == pcm(30, seed=2)
    assert eventually(lambda: at_rest(server))


def test_requests_that_are_cancelled_as_they_arrive_free_everything(server, pcm):
    """A cancellation may overtake its request on the way to the worker, at any point."""
    for _ in range(200):
        ticket = server.submit(items=1000)
        ticket.cancel()
        with pytest.raises(Cancelled):
            list(ticket)
    assert server.speech(items=3, seed=1).content == pcm(3, seed=1)


def in_the_queue(server, eventually):
    """Its prefill waits on the worker behind a slow run of another request."""
    before = server.metric("mstar_batch_calls_total")
    slow = server.submit(items=1, delay_ms=300)
    assert eventually(lambda: server.metric("mstar_batch_calls_total") > before)
    ticket = server.submit(**ENDLESS)
    assert slow.end is None
    return ticket


def in_a_fixed_loop(server, eventually):
    before = server.runs("count")
    ticket = server.submit(**ENDLESS, rounds=10_000)
    assert eventually(lambda: server.runs("count") > before)
    return ticket


def in_a_dynamic_loop(server, eventually):
    """Before the first chunk is full."""
    before = server.runs("write")
    ticket = server.submit(**ENDLESS, delay_ms=50)
    assert eventually(lambda: server.runs("write") > before)
    return ticket


def while_streaming(server, eventually):
    ticket = server.submit(**ENDLESS)
    next(iter(ticket))
    return ticket


def with_a_full_buffer(server, eventually):
    """The writer waits for room while the speaker runs."""
    before = server.runs("write")
    ticket = server.submit(**ENDLESS, slow_speaker_ms=200)
    assert eventually(lambda: server.runs("write") >= before + 8)
    return ticket


def at_the_last_emit(server, eventually):
    """Everything is written; the speaker speaks what is left."""
    ticket = server.submit(items=6, slow_speaker_ms=50)
    next(iter(ticket))
    return ticket


PHASES = (
    in_the_queue,
    in_a_fixed_loop,
    in_a_dynamic_loop,
    while_streaming,
    with_a_full_buffer,
    at_the_last_emit,
)


@pytest.mark.parametrize("reach", PHASES)
def test_a_request_cancelled_in_any_phase_ends_once_and_the_next_one_is_fine(server, pcm, eventually, reach):
    """Aborts may not race with scheduling: one terminal event, nothing left that runs, and the server goes on."""
    ticket = reach(server, eventually)
    ticket.cancel()
    ticket.cancel()
    with pytest.raises(Cancelled):
        list(ticket)
    assert server.speech(items=5, seed=9).content == pcm(5, seed=9)


def test_a_waiting_request_can_be_cancelled_without_ever_running(narrow_server, eventually):
    """An abort in the admission queue takes the request out; the one that runs goes on, the place is free again."""
    running = narrow_server.submit(**ENDLESS, delay_ms=2)
    waiting = narrow_server.submit()
    waiting.cancel()
    with pytest.raises(Cancelled):
        list(waiting)
    waiting = narrow_server.submit(items=3, seed=1)
    assert len(next(iter(running)).samples)
    running.cancel()
    assert len(np.concatenate([content.samples for content in waiting])) == 3 * 240


def test_a_client_that_leaves_the_queue_makes_room(narrow_server, pcm, eventually):
    """The same over HTTP: nobody runs or waits for a connection that is gone."""
    running = narrow_server.submit(**ENDLESS, delay_ms=2)
    submitted = narrow_server.metric("mstar_requests_submitted_total")
    with ThreadPoolExecutor(1) as pool:
        impatient = pool.submit(lambda: narrow_server.http.post("/generate", json=body(), timeout=0.3))
        assert eventually(lambda: narrow_server.metric("mstar_requests_submitted_total") == submitted + 1)
        assert impatient.exception() is not None
    assert eventually(lambda: narrow_server.held()["mstar_requests_open"] == 1)
    running.cancel()
    assert narrow_server.speech(items=3, seed=1).content == pcm(3, seed=1)


def body():
    return {"model": "scripted", "input": "Hello."}
