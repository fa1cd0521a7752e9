"""What a stream carries: every item once, in order, early, to its very end."""

import base64

import numpy as np
import pytest


@pytest.mark.parametrize("items", range(14))
def test_every_item_count_is_heard_whole_and_in_order(server, sound, audio_of, items):
    """No length, in whole chunks or not, may hang, lose its tail, repeat or shift an item."""
    answer = server.generate(items=items, seed=7)
    assert np.array_equal(audio_of(answer), sound(items, seed=7))
    assert answer.json()["finish_reason"] == "stop"


@pytest.mark.parametrize("items", [0, 1, 2, 3, 7, 8, 9, 13])
def test_a_streamed_body_of_every_length_ends(server, pcm, items):
    """The same through a chunked body, whose end must be sent."""
    assert server.speech(items=items, seed=7, stream=True).content == pcm(items, seed=7)


@pytest.mark.parametrize("slow", [{"delay_ms": 3}, {"slow_speaker_ms": 3}], ids=["slow producer", "slow consumer"])
def test_a_stream_keeps_its_items_when_one_side_is_slow(server, pcm, slow):
    """Neither an empty nor a full buffer between two nodes may lose, repeat or reorder items."""
    assert server.speech(items=41, seed=3, **slow).content == pcm(41, seed=3)


def test_audio_comes_long_before_the_end(server):
    """A stream may not be collected and sent at the end: 10 pieces come while 99 % of the work is still ahead."""
    before = server.runs("write")
    with server.speaking(items=100_000, max_items=100_000, delay_ms=2) as answer:
        pieces = answer.iter_raw()
        first = next(pieces)
        assert server.runs("write") - before < 25_000
        assert first
        assert all(next(pieces) for _ in range(9))
        assert server.runs("write") - before < 25_000
        answer.close()


def test_a_stream_comes_in_many_pieces(server, events):
    """A model that makes 40 items, two a chunk, is heard in 20 steps, however a proxy regroups the bytes."""
    got = events(server.speech(items=40, delay_ms=2, stream_format="sse").text)
    deltas = [base64.b64decode(data["audio"]) for name, data in got if name == "speech.audio.delta"]
    assert len(deltas) == 20
    assert got[-1][0] == "speech.audio.done"


def test_events_whole_body_and_chunked_body_hold_the_same_audio(server, pcm, events):
    """No way of asking may return accumulated, doubled or shortened audio."""
    asked = {"items": 23, "seed": 5}
    got = events(server.speech(stream_format="sse", **asked).text)
    told = b"".join(base64.b64decode(data["audio"]) for name, data in got if name == "speech.audio.delta")
    wav = server.speech(response_format="wav", **asked).content
    assert server.speech(**asked).content == server.speech(stream=True, **asked).content == told == wav[44:]
    assert told == pcm(23, seed=5)


@pytest.mark.parametrize("stream", [False, True])
def test_a_capped_answer_says_length_and_lacks_nothing(server, pcm, events, stream):
    """Hitting the bound may neither pass for a natural end nor drop what was made."""
    capped = {"items": 100, "max_items": 7, "seed": 1}
    if stream:
        got = events(server.speech(stream_format="sse", **capped).text)
        body = b"".join(base64.b64decode(data["audio"]) for name, data in got[:-1])
        reason = got[-1][1]["finish_reason"]
    else:
        answer = server.speech(**capped)
        body, reason = answer.content, answer.headers["x-mstar-finish-reason"]
    assert (body, reason) == (pcm(7, seed=1), "length")


@pytest.mark.parametrize(("items", "reason"), [(6, "stop"), (7, "length"), (8, "length")])
def test_the_finish_reason_is_told_right_around_the_bound(server, sound, audio_of, items, reason):
    """Off-by-one faults at the bound: the stop signal in the last allowed round still counts."""
    answer = server.generate(items=items, max_items=7)
    assert (len(audio_of(answer)), answer.json()["finish_reason"]) == (len(sound(min(items, 7))), reason)


def test_an_answer_that_is_at_its_end_at_once_is_empty_and_clean(server):
    """A first sampled end may neither crash nor hang; there is then nothing to hear."""
    answer = server.speech(items=0)
    assert (answer.status_code, answer.content, answer.headers["x-mstar-finish-reason"]) == (200, b"", "stop")


@pytest.mark.parametrize("rounds", [1, 2, 49])
def test_a_fixed_loop_runs_exactly_as_often_as_it_says(server, rounds):
    """A loop may neither run once more nor never end, whatever runs behind it."""
    before = server.runs("count")
    outputs = {part["type"]: part for part in server.generate(rounds=rounds, items=2).json()["outputs"]}
    counts = np.frombuffer(base64.b64decode(outputs["tensor"]["data"]), "<i8")
    assert counts.tolist() == list(range(1, rounds + 1))
    assert server.runs("count") - before == rounds
