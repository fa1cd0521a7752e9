"""What the API takes, refuses and tells: nothing is dropped silently, nothing wrong is accepted."""

import base64

import httpx
import numpy as np
import openai
import pytest

SPEECH = {"model": "scripted", "input": "Hello.", "response_format": "pcm"}
GENERATE = {"model": "scripted", "input": "Hello."}


def without(body, name):
    return {field: value for field, value in body.items() if field != name}


REFUSED_SPEECH = [
    ({"input": ""}, 400, "input", "empty"),
    ({"input": " \t\n"}, 400, "input", "blank"),
    ({"input": None}, 400, "input", "string"),
    ({"input": 7}, 400, "input", "string"),
    ({"input": ["Hello."]}, 400, "input", "string"),
    ({"model": "scriptd"}, 404, "model", "'scripted'"),
    ({"model": ""}, 404, "model", "scripted"),
    ({"model": None}, 400, "model", "string"),
    ({"voice": "lo"}, 400, "voice", "low, high"),
    ({"voice": None}, 400, "voice", "string"),
    ({"voice": 1}, 400, "voice", "string"),
    ({"voice": {"id": "lo"}}, 400, "voice", "low, high"),
    ({"voice": {"name": "low"}}, 400, "voice", "id"),
    ({"speed": 0}, 400, "speed", "0.25"),
    ({"speed": 4.5}, 400, "speed", "4"),
    ({"speed": "1"}, 400, "speed", "number"),
    ({"stream": "yes"}, 400, "stream", "boolean"),
    ({"stream_format": "ndjson"}, 400, "stream_format", "'sse'"),
    ({"items": -1}, 400, "items", "at least 0"),
    ({"items": 100_001}, 400, "items", "at most 100000"),
    ({"items": 2.5}, 400, "items", "integer"),
    ({"items": "5"}, 400, "items", "integer"),
    ({"items": True}, 400, "items", "integer"),
    ({"items": None}, 400, "items", "null"),
    ({"itms": 5}, 400, "itms", "'items'"),
    ({"instructions": "Whisper."}, 400, "instructions", "does not support"),
    ({"n": 2}, 400, "n", "unknown field"),
    ({"stop": ["."]}, 400, "stop", "unknown field"),
    ({"max_tokens": 10}, 400, "max_tokens", "unknown field"),
]

REFUSED_GENERATE = [
    ({"input": ""}, 400, "input", "hold something"),
    ({"input": "  "}, 400, "input", "hold something"),
    ({"input": []}, 400, "input", "hold something"),
    ({"input": None}, 400, "input", "string"),
    ({"input": [{"type": "text", "text": " "}]}, 400, "input.0.text", "text"),
    ({"input": [{"type": "text"}]}, 400, "input.0.text", "required"),
    ({"input": [{"type": "txt", "text": "a"}]}, 400, "input.0.type", "'text'"),
    ({"input": [{"type": "text", "text": "a", "texts": 1}]}, 400, "input.0.texts", "'text'"),
    ({"input": ["a"]}, 400, "input.0", "object"),
    ({"input": [{"type": "text", "text": "a"}] * 2}, 400, "input", "one text"),
    (
        {"input": [{"type": "audio", "rate": 24000, "shape": [1], "data": base64.b64encode(bytes(4)).decode()}]},
        400,
        "input.0.type",
        "takes text",
    ),
    ({"model": "scriptd"}, 404, "model", "'scripted'"),
    ({"model": 3}, 400, "model", "string"),
    ({"outputs": ["image"]}, 400, "outputs", "audio, tensor"),
    ({"outputs": []}, 400, "outputs", "audio, tensor"),
    ({"outputs": "audio"}, 400, "outputs", "list"),
    ({"parameters": {"itms": 1}}, 400, "parameters.itms", "'items'"),
    ({"parameters": {"items": "1"}}, 400, "parameters.items", "integer"),
    ({"parameters": {"voice": "lo"}}, 400, "parameters.voice", "low, high"),
    ({"parameters": {"seed": 2**63}}, 400, "parameters.seed", "at most"),
    ({"parameters": None}, 400, "parameters", "dictionary"),
    ({"parameter": {}}, 400, "parameter", "'parameters'"),
    ({"items": 3}, 400, "items", "unknown field"),
    ({"audio_format": "ogg"}, 400, "audio_format", "opus"),
    ({"stream": 1}, 400, "stream", "boolean"),
    ({"request_id": "a b"}, 400, "request_id", "characters"),
]


def assert_refused(server, route, body, status, param, told):
    submitted = server.metric("mstar_requests_submitted_total")
    answer = server.http.post(route, json=body)
    error = answer.json()["error"]
    assert answer.json().keys() == {"error"}
    assert error.keys() == {"message", "type", "param", "code"}
    assert (answer.status_code, error["type"], error["param"]) == (status, "invalid_request_error", param)
    assert error["code"] == {400: "invalid_request", 404: "not_found"}[answer.status_code]
    assert told in error["message"]
    assert server.metric("mstar_requests_submitted_total") == submitted


@pytest.mark.parametrize(("changed", "status", "param", "told"), REFUSED_SPEECH)
def test_speech_that_cannot_be_is_refused_by_field(server, changed, status, param, told):
    """Wrong input may neither be accepted, nor dropped, nor reach the model; the message says what is valid."""
    assert_refused(server, "/v1/audio/speech", {**SPEECH, **changed}, status, param, told)


@pytest.mark.parametrize(("changed", "status", "param", "told"), REFUSED_GENERATE)
def test_generation_that_cannot_be_is_refused_by_field(server, changed, status, param, told):
    """The same on the native route, with the field's path."""
    assert_refused(server, "/generate", {**GENERATE, **changed}, status, param, told)


@pytest.mark.parametrize(
    ("route", "body", "name"),
    [
        ("/v1/audio/speech", SPEECH, "model"),
        ("/v1/audio/speech", SPEECH, "input"),
        ("/generate", GENERATE, "model"),
        ("/generate", GENERATE, "input"),
    ],
)
def test_a_missing_field_is_named(server, route, body, name):
    """No required field may have a silent default."""
    assert_refused(server, route, without(body, name), 400, name, "required")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"Hello."', b"\xff\xfe", b"[" * 100_000, b'{"model": NaN}'])
@pytest.mark.parametrize("route", ["/v1/audio/speech", "/generate"])
def test_a_body_that_is_no_object_is_refused(server, route, body):
    """No bytes may crash the server or pass for a request."""
    answer = server.http.post(route, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


def test_a_voice_has_an_effect_in_either_spelling(server, pcm):
    """OpenAI's two ways to name a voice mean the same, and it is heard."""
    high = pcm(4, seed=1, high=True)
    assert server.speech(items=4, seed=1, voice="high").content == high
    assert server.speech(items=4, seed=1, voice={"id": "high"}).content == high
    assert server.speech(items=4, seed=1).content == pcm(4, seed=1) != high


@pytest.mark.parametrize(
    "outputs", [["audio"], ["tensor"], ["audio", "tensor"], None], ids=["audio", "tensor", "both", "default"]
)
def test_only_the_outputs_asked_for_come_back(server, outputs):
    """A client that wants one modality may not be sent another."""
    asked = {} if outputs is None else {"outputs": outputs}
    answer = server.generate(asked, rounds=2, items=2)
    assert sorted(part["type"] for part in answer.json()["outputs"]) == (outputs or ["audio", "tensor"])


@pytest.mark.parametrize(
    "text",
    [
        "?!...",
        "\U0001f389\U0001f469\u200d\U0001f680",
        "שלום עולם",
        "na\u0000ul\u0007l",
        "<|eot_id|>",
        "<custom_token_3>",
        "a" * 50_000,
        "\u202ereversed",
    ],
    ids=["punctuation", "emoji", "right-to-left", "control", "end id", "audio id", "long", "override"],
)
def test_unnatural_text_reaches_the_model_as_it_is(server, pcm, text):
    """The core may not interpret, cut or choke on text: what it means is the model's business."""
    answer = server.speech(input=text, items=3, seed=1)
    assert (answer.status_code, answer.content) == (200, pcm(3, seed=1))


def test_half_a_character_is_refused(server):
    """A lone surrogate is no text; it may not crash what lies behind."""
    raw = b'{"model": "scripted", "input": "\\ud83d"}'
    answer = server.http.post("/v1/audio/speech", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400


def test_the_official_client_speaks(server, pcm, tmp_path):
    """OpenAI's own client works unchanged: whole, streamed, and with a model's own parameters."""
    asked = {"model": "scripted", "voice": "high", "input": "Hello.", "response_format": "pcm"}
    own = {"items": 9, "seed": 3, "code": 20}
    wanted = pcm(9, seed=3, code=20, high=True)
    speech = server.client.audio.speech
    assert speech.create(**asked, extra_body=own).read() == wanted
    with speech.with_streaming_response.create(**asked, extra_body={**own, "stream": True}) as answer:
        assert b"".join(answer.iter_bytes()) == wanted
        assert answer.headers["content-type"] == "audio/pcm"


@pytest.mark.parametrize(
    ("changed", "raised", "code"),
    [
        ({"voice": "nobody"}, openai.BadRequestError, "invalid_request"),
        ({"model": "nothing"}, openai.NotFoundError, "not_found"),
        ({"extra_body": {"fail": "writer"}}, openai.InternalServerError, "node_failed"),
    ],
)
def test_the_official_client_raises_what_it_should(server, changed, raised, code):
    """Errors have OpenAI's shape, so that its client finds type, field and code."""
    asked = {"model": "scripted", "voice": "low", "input": "Hello.", **changed}
    with pytest.raises(raised) as caught:
        server.client.audio.speech.create(**asked)
    assert caught.value.code == code
    assert caught.value.status_code == caught.value.response.status_code


def test_models_and_voices_are_those_that_are_served(server):
    """What is listed is what can be asked for, with the values that are valid."""
    (model,) = server.http.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["checkpoint"]) == ("scripted", "model", "tiny")
    assert model["modalities"] == {"input": ["text"], "output": ["audio", "tensor"]}
    assert "/v1/audio/speech" in model["routes"]
    assert {"voice", "items", "seed"} <= {parameter["name"] for parameter in model["parameters"]}
    assert server.http.get("/v1/models/scripted").json() == model
    assert server.http.get("/v1/models/other").status_code == 404
    assert [listed.id for listed in server.client.models.list()] == ["scripted"]
    voices = server.http.get("/v1/audio/voices").json()
    assert voices["voices"] == ["low", "high"]
    assert voices["models"]["scripted"] == {"voices": ["low", "high"], "default": "low"}
    assert all(server.speech(voice=voice, items=1).status_code == 200 for voice in voices["voices"])


def test_health_is_green_while_requests_are_answered(server):
    """Green means that a request would be answered."""
    health = server.http.get("/health")
    assert health.status_code == 200
    told = health.json()
    assert (told["live"], told["ready"], told["status"], told["models"]) == (True, True, "ready", {"scripted": "ready"})
    assert {worker["state"] for worker in told["workers"].values()} == {"ready"}
    run = {node for worker in told["workers"].values() for node in worker["nodes"]["scripted"]}
    assert run == {"reader", "writer", "speaker", "counter"}
    assert all(worker["memory"]["host"] > 0 for worker in told["workers"].values())
    assert server.http.get("/health/live").status_code == server.http.get("/health/ready").status_code == 200


def test_metrics_count_what_happened(server):
    """Each request is counted once, under the way it ended; gauges show it while it runs."""
    ends = ("stop", "length", "node_failed")
    before = {reason: server.metric("mstar_requests_ended_total", reason=reason) for reason in ends}
    runs = server.runs("write")
    server.speech(items=4)
    server.speech(items=9, max_items=4)
    server.speech(items=4, fail="reader")
    with server.speaking(items=1000, delay_ms=5) as answer:
        pieces = answer.iter_raw()  # kept: httpx closes the connection with the iterator
        next(pieces)
        assert server.metric("mstar_requests_open") == 1
        assert server.metric("mstar_worker_requests") == server.metric("mstar_worker_up")
    counted = [server.metric("mstar_requests_ended_total", reason=reason) - before[reason] for reason in ends]
    assert counted == [1, 1, 1]
    assert server.runs("write") - runs >= 5 + 4
    answers = {"route": "/v1/audio/speech", "method": "POST", "status": "500"}
    assert server.metric("mstar_http_requests_total", **answers) >= 1


def test_unknown_routes_and_methods_answer_in_the_same_shape(server):
    """Every refusal is an OpenAI error, those of the router too."""
    lost: httpx.Response = server.http.post("/v1/audio/speeches", json={})
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "not_found")
    wrong = server.http.get("/v1/audio/speech")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


def test_raw_outputs_name_their_type_and_shape(server, sound):
    """An array may not come back as bare bytes that nobody can read."""
    (part,) = server.generate(items=3, seed=1).json()["outputs"]
    assert (part["dtype"], part["shape"], part["rate"]) == ("float32", [720], 24_000)
    assert np.array_equal(np.frombuffer(base64.b64decode(part["data"]), "<f4"), sound(3, seed=1))
