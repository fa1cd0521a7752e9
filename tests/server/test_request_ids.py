import logging

import pytest

from mstar_core import log

SPEECH = "/v1/audio/speech"
SAY = {"model": "speaker", "input": "Hello.", "response_format": "pcm"}


def test_request_without_an_id_gets_one_that_the_answer_names(http, service, tone):
    service.script = tone(1)
    first, second = (http.post(SPEECH, json=SAY).headers["x-request-id"] for _ in range(2))
    assert [seen["id"] for seen in service.seen] == [first, second]
    assert first != second


def test_id_of_the_client_is_kept_also_by_an_error(http):
    answer = http.post(SPEECH, json={}, headers={"x-request-id": "a-1"})
    assert answer.headers["x-request-id"] == "a-1"


@pytest.mark.parametrize("given", ["", "a b", "ä", "a" * 129, "a/b"])
def test_id_that_cannot_be_is_400(http, given):
    answer = http.post(SPEECH, json=SAY, headers={"x-request-id": given.encode()})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-request-id")


@pytest.mark.parametrize("path", [SPEECH, "/generate"])
def test_id_that_is_running_is_409(http, service, tone, path):
    service.script = [*tone(1), 60]
    with http.stream("POST", SPEECH, json=SAY | {"stream": True}, headers={"x-request-id": "twice"}):
        answer = http.post(path, json={"model": "speaker", "input": "Hi."}, headers={"x-request-id": "twice"})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "conflict"


def test_id_in_the_body_of_generate_counts(http, service, tone):
    service.script = tone(1)
    answer = http.post("/generate", json={"model": "speaker", "input": "Hi.", "request_id": "mine"})
    assert answer.headers["x-request-id"] == answer.json()["id"] == service.seen[0]["id"] == "mine"


def test_two_different_ids_are_400(http):
    fields = {"model": "speaker", "input": "Hi.", "request_id": "mine"}
    answer = http.post("/generate", json=fields, headers={"x-request-id": "other"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "request_id")


class Lines(logging.Handler):
    """The request and the start of each line about a POST."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        if record.getMessage().startswith("POST"):
            self.lines.append((log.request_id.get(), record.getMessage()[:28]))


def test_records_name_their_request(http, service, tone, monkeypatch, eventually):
    service.script = tone(1)
    access, handler = logging.getLogger("mstar_core.server.access"), Lines()
    monkeypatch.setattr(access, "handlers", [handler])
    monkeypatch.setattr(access, "isEnabledFor", lambda level: True)
    http.post(SPEECH, json=SAY, headers={"x-request-id": "a-1"})
    http.post(SPEECH, json=SAY, headers={"x-request-id": "a-2"})
    line = "POST /v1/audio/speech 200 in"
    # Written when the response has gone out, which may be after its client has it.
    assert eventually(lambda: handler.lines == [("a-1", line), ("a-2", line)])
