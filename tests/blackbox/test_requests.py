"""Requests beside each other: each gets its own answer, whatever the others do."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest

from mstar_core.errors import Cancelled


def at_once(calls):
    """The results of all calls, made at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def test_parallel_callers_hear_only_their_own_codes(server, sound, audio_of):
    """Rows of one batch may never be mixed up, nor answers given to the wrong caller."""
    lengths = {code: 1 + code % 7 for code in range(100, 132)}
    answers = at_once(
        [lambda code=code: server.generate(code=code, items=lengths[code], seed=code) for code in lengths]
    )
    for code, answer in zip(lengths, answers, strict=True):
        assert np.array_equal(audio_of(answer), sound(lengths[code], code=code, seed=code))


def test_parallel_streams_hear_only_their_own_codes(server, pcm):
    """The same while every answer is streamed."""
    codes = range(200, 232)
    answers = at_once([lambda code=code: server.speech(code=code, items=9, seed=code, stream=True) for code in codes])
    assert [answer.content for answer in answers] == [pcm(9, code=code, seed=code) for code in codes]


def test_a_running_id_cannot_be_used_twice(server, pcm):
    """Two requests of one id would get each other's outputs: the second is refused, the first goes on."""
    name = {"x-request-id": "twice"}
    with server.speaking(headers=name, items=60, delay_ms=10, seed=1) as first:
        pieces = first.iter_raw()
        body = next(pieces)
        second = server.speech(headers=name)
        assert (second.status_code, second.json()["error"]["code"]) == (409, "conflict")
        assert "twice" in second.json()["error"]["message"]
        assert body + b"".join(pieces) == pcm(60, seed=1)
    assert server.speech(headers=name, items=1, seed=1).content == pcm(1, seed=1)


def test_an_id_can_be_used_again_at_once_after_its_request_was_cancelled(server, sound):
    """What the first request still had under way may not turn up in the second one's answer."""
    for code in range(1, 31):
        first = server.submit(request_id="again", code=code, items=1000, seed=1)
        next(iter(first))
        first.cancel()
        with pytest.raises(Cancelled):
            list(first)
        second = server.submit(request_id="again", code=500 + code, items=3, seed=2)
        first.cancel()
        heard = np.concatenate([content.samples for content in second])
        assert np.array_equal(heard, sound(3, code=500 + code, seed=2))


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_a_seed_gives_the_same_bytes_alone_and_beside_others(server, pcm, seed):
    """A seed may not be ignored, nor depend on the row a request has in its batch."""
    alone = server.speech(items=9, seed=seed).content
    beside = at_once(
        [
            *(lambda other=other: server.speech(items=9, seed=1000 + other) for other in range(8)),
            lambda: server.speech(items=9, seed=seed),
            *(lambda other=other: server.speech(items=9, seed=2000 + other) for other in range(8)),
        ]
    )
    assert alone == beside[8].content == pcm(9, seed=seed)
    assert alone not in [answer.content for index, answer in enumerate(beside) if index != 8]


def test_without_a_seed_answers_differ(server):
    """A seed that was left out may not be a constant one."""
    assert server.speech(items=20).content != server.speech(items=20).content


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "1", True, None])
def test_an_impossible_seed_is_refused(server, seed):
    """No seed may be wrapped, rounded or ignored."""
    answer = server.speech(seed=seed)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "seed")


KINDS = {
    "whole": lambda server: server.speech(items=5, seed=4),
    "streamed": lambda server: server.speech(items=6, seed=4, stream=True),
    "other voice": lambda server: server.speech(items=5, seed=4, voice="high"),
    "counting": lambda server: server.generate(items=1, seed=4, rounds=5),
    "capped": lambda server: server.speech(items=50, max_items=3, seed=4),
    "empty": lambda server: server.speech(items=0),
    "refused": lambda server: server.speech(voice="nobody"),
    "failing": lambda server: server.speech(items=5, fail="writer", fail_at=2),
}


@pytest.mark.parametrize("between", KINDS)
def test_an_answer_is_the_same_after_another_kind_of_request(server, between):
    """No request may leave something behind that changes a later one."""
    for kind in ("whole", "streamed", "counting"):
        before = KINDS[kind](server)
        KINDS[between](server)
        after = KINDS[kind](server)
        if kind == "counting":
            assert before.json()["outputs"] == after.json()["outputs"]
        assert kind == "counting" or before.content == after.content


@pytest.mark.parametrize(("node", "walk"), [("reader", "prefill"), ("writer", "write"), ("speaker", "speak")])
def test_a_node_that_raises_fails_its_own_request_only(server, pcm, node, walk):
    """One bad request may neither stop the others nor change them, and its answer says where it failed."""
    bad_run = 0 if node == "reader" else 2
    good = [
        lambda code=code: server.speech(code=code, items=12, seed=code, delay_ms=2, stream=bool(code % 2))
        for code in range(8)
    ]
    *fine, failed = at_once([*good, lambda: server.speech(items=12, delay_ms=2, fail=node, fail_at=bad_run)])
    assert [answer.content for answer in fine] == [pcm(12, code=code, seed=code) for code in range(8)]
    error = failed.json()["error"]
    assert (failed.status_code, error["code"], error["type"]) == (500, "node_failed", "server_error")
    assert f"node {node!r}" in error["message"]
    assert f"walk {walk!r}" in error["message"]


def test_a_failing_stream_does_not_end_like_a_complete_one(server, events):
    """Audio that breaks off may not pass for a whole answer."""
    with server.speaking(items=20, fail="writer", fail_at=9) as answer, pytest.raises(httpx.RemoteProtocolError):
        answer.read()
    got = events(server.speech(items=20, fail="writer", fail_at=9, stream_format="sse").text)
    assert [name for name, _ in got[-1:]] == ["error"]
    assert got[-1][1]["error"]["code"] == "node_failed"


def test_a_full_queue_refuses_and_says_when_to_come_back(narrow_server, pcm):
    """Overload may neither hang callers nor disturb those who were admitted."""
    running = narrow_server.submit(items=100_000, max_items=100_000, delay_ms=5)
    waiting = narrow_server.submit(items=3, seed=1)
    answer = narrow_server.speech()
    with pytest.raises(openai.RateLimitError):
        narrow_server.client.audio.speech.create(model="scripted", input="Hello.", voice="low")
    running.cancel()
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1
    assert sum(len(content.samples) for content in waiting) * 2 == len(pcm(3))
    assert narrow_server.speech(items=3, seed=1).content == pcm(3, seed=1)
