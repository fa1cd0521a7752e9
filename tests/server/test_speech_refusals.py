import pytest

ROUTE = "/v1/audio/speech"

MISSING = object()

CASES = [
    ({"input": ""}, 400, "input", "empty"),
    ({"input": " \n\t "}, 400, "input", "blanks"),
    ({"input": None}, 400, "input", "null"),
    ({"input": 7}, 400, "input", "string"),
    ({"input": ["a"]}, 400, "input", "string"),
    ({"input": MISSING}, 400, "input", "required"),
    ({"model": MISSING}, 400, "model", "required"),
    ({"model": None}, 400, "model", "null"),
    ({"model": "speeker"}, 404, "model", "did you mean 'speaker'"),
    ({"model": "everything"}, 400, "model", "models that do: speaker"),
    ({"voice": "alloy"}, 400, "voice", "tara, leo"),
    ({"voice": None}, 400, "voice", "null"),
    ({"voice": 3}, 400, "voice", "string"),
    ({"voice": {"id": "nobody"}}, 400, "voice", "tara, leo"),
    ({"voice": {"name": "tara"}}, 400, "voice", "id"),
    ({"response_format": "ogg"}, 400, "response_format", "wav, pcm, flac, mp3, opus, aac"),
    ({"response_format": None}, 400, "response_format", "null"),
    ({"speed": 0.2}, 400, "speed", "0.25"),
    ({"speed": 4.5}, 400, "speed", "4"),
    ({"speed": "fast"}, 400, "speed", "number"),
    ({"stream": "yes"}, 400, "stream", "boolean"),
    ({"stream_format": "chunks"}, 400, "stream_format", "'audio' or 'sse'"),
    ({"stream_format": "sse", "stream": False}, 400, "stream_format", "'stream' is false"),
    ({"instructions": "Whisper."}, 400, "instructions", "does not support"),
    ({"temprature": 1}, 400, "temprature", "did you mean 'temperature'"),
    ({"n": 2}, 400, "n", "unknown field"),
    ({"temperature": 3}, 400, "temperature", "at most 2"),
    ({"temperature": "hot"}, 400, "temperature", "number"),
    ({"temperature": None}, 400, "temperature", "null"),
    ({"seed": 2**63}, 400, "seed", str(2**63 - 1)),
    ({"seed": -1}, 400, "seed", "at least 0"),
    ({"seed": 1.5}, 400, "seed", "integer"),
    ({"seed": True}, 400, "seed", "integer"),
    ({"input": "unspeakable"}, 400, "input", "spoken"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("change", "status", "param", "told"), CASES, ids=lambda value: str(value)[:40])
def test_request_that_cannot_be_is_refused_with_its_field(http, service, change, status, param, told, stream):
    fields = {"model": "speaker", "input": "Hello.", "stream": stream, **change}
    answer = http.post(ROUTE, json={name: value for name, value in fields.items() if value is not MISSING})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert told in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == {400: "invalid_request", 404: "not_found"}[status]
    assert not service.seen
