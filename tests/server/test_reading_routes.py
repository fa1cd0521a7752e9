import httpx
import openai
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from mstar_core.client.service import Health
from mstar_core.errors import ConfigurationError
from mstar_core.server.settings import ServerSettings
from mstar_core.testing.server import http_server

LOADING = Health(live=True, ready=False, models={"speaker": "worker w0 died"}, workers={"w0": "failed"})


def test_models_are_listed_as_openai_does_with_their_modalities(http):
    answer = http.get("/v1/models").json()
    assert answer["object"] == "list"
    speaker, everything = answer["data"]
    assert (speaker["id"], speaker["object"], speaker["owned_by"]) == ("speaker", "model", "mstar")
    assert speaker["modalities"] == {"input": ["text"], "output": ["audio"]}
    assert speaker["routes"] == ["/generate", "/v1/audio/speech"]
    assert everything["routes"] == ["/generate"]


def test_model_tells_its_parameters(http):
    parameters = {each["name"]: each for each in http.get("/v1/models/speaker").json()["parameters"]}
    assert parameters["voice"]["choices"] == ["tara", "leo"]
    assert (parameters["temperature"]["minimum"], parameters["temperature"]["maximum"]) == (0, 2)
    assert parameters["seed"]["kind"] == "int"


def test_openai_client_reads_models(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["speaker", "everything"]
        assert client.models.retrieve("speaker").id == "speaker"
        with pytest.raises(openai.NotFoundError, match="did you mean 'speaker'"):
            client.models.retrieve("speeker")


def test_voices_are_listed_by_model(http):
    speaker = {"voices": ["tara", "leo"], "default": "tara"}
    assert http.get("/v1/audio/voices").json() == {"voices": ["tara", "leo"], "models": {"speaker": speaker}}
    assert http.get("/v1/audio/voices?model=everything").json() == {"voices": [], "models": {}}


def test_voices_of_an_unknown_model_or_query_are_refused(http):
    assert http.get("/v1/audio/voices?model=nobody").status_code == 404
    answer = http.get("/v1/audio/voices?mdl=speaker")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "mdl")


def test_health_tells_ready(http, service):
    for path in ("/health", "/health/ready"):
        answer = http.get(path)
        assert (answer.status_code, answer.json()["ready"]) == (200, True)


def test_health_tells_what_is_not_ready_while_the_server_lives(http, service):
    service.state = LOADING
    answer = http.get("/health")
    assert answer.status_code == http.get("/health/ready").status_code == 503
    told = answer.json()
    assert (told["live"], told["ready"], told["status"]) == (True, False, "unavailable")
    assert told["models"] == {"speaker": "worker w0 died"}
    assert told["workers"]["w0"] == {
        "state": "ready",
        "nodes": {"speaker": ["writer"]},
        "device": "cuda:0",
        "memory": {"device": 2**30, "host": 2**20},
    }
    assert http.get("/health/live").status_code == 200


def health(ready, models, workers):
    return Health(live=True, ready=ready, models={"m": models}, workers=workers)


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        (health(True, "ready", {"a": "ready", "b": "ready"}), "ready", 200),
        (health(True, "ready", {"a": "ready", "b": "restarting: it was killed"}), "degraded", 200),
        (health(False, "loading", {"a": "ready", "b": "loading"}), "loading", 503),
        (health(False, "worker 'a': out of memory", {"a": "out of memory"}), "unavailable", 503),
        (health(False, "ready", {"a": "ready"}), "stopping", 503),
    ],
)
def test_health_tells_the_state_in_a_word(http, service, state, status, code):
    service.state = state
    answer = http.get("/health")
    assert (answer.json()["status"], answer.status_code) == (status, code)


def samples_in(answer):
    """Value by name and sorted label values."""
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics_hold_the_services_samples_and_the_servers_own(http, service, tone, eventually):
    service.script = tone(1)
    http.post("/v1/audio/speech", json={"model": "speaker", "input": "Hi."})
    http.get("/nowhere")
    # A request is counted when its response has gone out; only the scrape itself is then in flight.
    assert eventually(lambda: samples_in(http.get("/metrics"))["mstar_http_requests_in_flight",] == 1)
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    samples = samples_in(answer)
    assert samples["mstar_requests_submitted_total",] == 1
    assert samples["mstar_pages", "b"] == 6
    assert samples["mstar_http_requests_total", "/v1/audio/speech", "200", "POST"] >= 1
    assert samples["mstar_http_requests_total", "404", "GET", "none"] >= 1
    assert samples["mstar_http_request_first_byte_seconds_count", "/v1/audio/speech"] >= 1


def test_metrics_of_other_parties_may_have_labels_and_buckets_of_their_own(http):
    samples = samples_in(http.get("/metrics"))
    assert samples["mstar_up", "", "conductor"] == 1
    assert samples["mstar_up", "far", "w0"] == 0
    assert [samples["mstar_wait_bucket", top, "a"] for top in ("0.5", "1.0", "+Inf")] == [3, 4, 5]
    assert (samples["mstar_wait_sum", "a"], samples["mstar_wait_count", "a"]) == (2.5, 5)


def test_metrics_are_openmetrics_for_a_scraper_that_asks(http):
    answer = http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = [family.name for family in openmetrics.text_string_to_metric_families(answer.text)]
    assert "mstar_requests_submitted" in names


def test_schema_describes_the_routes_and_loads_nothing_from_elsewhere(http):
    paths = http.get("/openapi.json").json()["paths"]
    assert {"/generate", "/v1/audio/speech", "/v1/models", "/health", "/metrics"} <= paths.keys()
    assert http.get("/docs").status_code == 404


@pytest.fixture(scope="module")
def locked(shared_service):
    """The URL of a server that wants a key."""
    with http_server(shared_service, ServerSettings(port=0, api_keys=("one", "two"))) as url:
        yield url


ROUTES = ["/v1/models", "/v1/audio/voices", "/health", "/health/ready", "/metrics", "/openapi.json", "/nowhere"]


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_wants_a_key(locked, path):
    answer = httpx.get(locked + path)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/generate", "/v1/audio/speech"])
def test_posting_without_a_key_reads_nothing(locked, path):
    assert httpx.post(locked + path, content=b"not even JSON").status_code == 401


@pytest.mark.parametrize("value", ["Bearer three", "Bearer", "one", "Basic one", "Bearer onetwo", "Bearer \xff"])
def test_wrong_key_is_401(locked, value):
    headers = {"authorization": value.encode("latin-1")}
    assert httpx.get(locked + "/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize("key", ["one", "two"])
def test_each_key_opens(locked, key, service):
    with openai.OpenAI(base_url=f"{locked}/v1", api_key=key) as client:
        assert [model.id for model in client.models.list()] == ["speaker", "everything"]


def test_liveness_is_open_for_probes_that_have_no_key(locked, service):
    assert httpx.get(locked + "/health/live").status_code == 200


@pytest.mark.parametrize("key", ["", " one", "a\nb", "ключ"])
def test_key_that_no_client_could_send_is_refused(key):
    with pytest.raises(ConfigurationError, match="printable ASCII"):
        ServerSettings(api_keys=(key,))


def test_settings_do_not_show_their_keys():
    assert "secret" not in repr(ServerSettings(api_keys=("secret",)))


@pytest.mark.parametrize(
    "wrong", [{"port": -1}, {"port": 65536}, {"keepalive_s": 0}, {"stall_s": 0}, {"drain_s": -1}, {"max_body_bytes": 0}]
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        ServerSettings(**wrong)
