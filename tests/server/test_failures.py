import logging

import httpx
import pytest

from mstar_core.errors import Overloaded, Unavailable
from mstar_core.spec.content import Audio

SPEECH = "/v1/audio/speech"
SAY = {"model": "speaker", "input": "Hello.", "response_format": "pcm"}


@pytest.mark.parametrize("mode", [{}, {"stream": True}, {"stream_format": "sse"}])
def test_failure_before_the_first_output_is_a_status(http, service, failure, mode):
    service.script = [failure]
    answer = http.post(SPEECH, json=SAY | mode)
    assert answer.status_code == 500
    assert answer.json()["error"] == {
        "message": failure.message,
        "type": "server_error",
        "param": None,
        "code": "node_failed",
    }


def test_full_queue_is_429_with_retry_after_in_whole_seconds(http, service):
    service.script = [Overloaded("4 requests are waiting; the queue holds 4", retry_after=1.2)]
    answer = http.post(SPEECH, json=SAY)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert answer.json()["error"]["type"] == "rate_limit_error"


def test_dead_worker_is_503(http, service):
    service.script = [Unavailable("worker w0 died")]
    assert http.post(SPEECH, json=SAY).status_code == 503


def test_chunked_stream_that_fails_never_ends_cleanly(http, service, tone, failure):
    service.script = [*tone(2), failure]
    with (
        pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"),
        http.stream("POST", SPEECH, json=SAY | {"stream": True}) as answer,
    ):
        answer.read()


def test_stream_of_events_that_fails_ends_with_an_error_event(http, service, tone, failure):
    service.script = [*tone(2), failure]
    text = http.post(SPEECH, json=SAY | {"stream_format": "sse"}).text
    assert text.rstrip().rpartition("\n\n")[2].startswith("event: error\n")
    assert '"code":"node_failed"' in text
    assert "speech.audio.done" not in text


def test_failure_after_a_keep_alive_comment_is_an_error_event(http, service, failure):
    service.script = [0.4, failure]
    answer = http.post(SPEECH, json=SAY | {"stream_format": "sse"})
    assert answer.status_code == 200
    assert answer.text.rstrip().rpartition("\n\n")[2].startswith("event: error\n")


def test_whole_body_that_fails_late_is_an_error_and_no_audio(http, service, tone, failure):
    service.script = [*tone(2), failure]
    answer = http.post(SPEECH, json=SAY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "node_failed")


@pytest.mark.parametrize("mode", [{}, {"stream": True}, {"stream_format": "sse"}])
def test_unforeseen_exception_is_a_500_with_its_id_and_logged_once(http, service, tone, mode, caplog):
    nonsense = Audio(tone(1)[0].samples * float("nan"), 24000)
    service.script = [nonsense]
    answer = http.post(SPEECH, json=SAY | mode, headers={"x-request-id": "odd-1"})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "odd-1" in answer.json()["error"]["message"]
    traces = [record for record in caplog.records if record.exc_info]
    assert [record.exc_info[0] for record in traces] == [ValueError]


def test_unforeseen_exception_in_mid_stream_cuts_it_and_is_logged_once(http, service, tone, caplog):
    (piece,) = tone(1)
    service.script = [piece, Audio(piece.samples, 16000)]
    with (
        pytest.raises(httpx.RemoteProtocolError),
        http.stream("POST", SPEECH, json=SAY | {"stream": True}) as answer,
    ):
        answer.read()
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError]


def test_unforeseen_exception_in_mid_events_is_told(http, service, tone, caplog):
    (piece,) = tone(1)
    service.script = [piece, Audio(piece.samples, 16000)]
    text = http.post(SPEECH, json=SAY | {"stream_format": "sse"}).text
    assert '"code":"internal_error"' in text
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError]


def test_server_goes_on_after_failures(http, service, tone, failure, pcm):
    service.script = [failure]
    http.post(SPEECH, json=SAY)
    service.script = tone()
    assert http.post(SPEECH, json=SAY).content == pcm(service.script)


def test_cut_stream_is_logged_with_its_reason(http, service, tone, failure, caplog):
    caplog.set_level(logging.INFO)
    service.script = [*tone(1), failure]
    with (
        pytest.raises(httpx.RemoteProtocolError),
        http.stream("POST", SPEECH, json=SAY | {"stream": True}) as answer,
    ):
        answer.read()
    assert any("node_failed" in record.getMessage() for record in caplog.records)
