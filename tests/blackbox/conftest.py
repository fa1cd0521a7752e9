import base64
import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import av
import httpx
import numpy as np
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mstar_core import env
from mstar_core.client.service import Service
from mstar_core.media.pcm import to_pcm
from mstar_core.server.settings import ServerSettings
from mstar_core.spec.content import Text
from mstar_core.spec.placement import Placement
from mstar_core.testing import distributions, scripted
from mstar_core.testing.plugins import registry_with
from mstar_core.testing.server import http_server
from mstar_core.testing.serving import SCRIPTED

PATIENCE_S = 20.0
"""How long to wait for what must come: only a broken server takes as long, however busy the machine is."""

HELD = ("mstar_requests_open", "mstar_worker_requests", "mstar_tensors_published", "mstar_http_requests_in_flight")
"""Gauges that are 0 in a server that serves nobody."""


@dataclass(frozen=True)
class Served:
    """The scripted model behind the real runtime and the real HTTP server."""

    service: Service
    http: httpx.Client

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(api_key="none", base_url=f"{self.http.base_url}/v1", max_retries=0, http_client=self.http)

    def speech(self, headers=None, **fields) -> httpx.Response:
        body = {"model": "scripted", "input": "Hello.", "response_format": "pcm", **fields}
        return self.http.post("/v1/audio/speech", json=body, headers=headers)

    def speaking(self, headers=None, **fields):
        """A speech response whose body is read by the caller."""
        body = {"model": "scripted", "input": "Hello.", "response_format": "pcm", "stream": True, **fields}
        return self.http.stream("POST", "/v1/audio/speech", json=body, headers=headers)

    def generate(self, request=None, **parameters) -> httpx.Response:
        body = {"model": "scripted", "input": "Hello.", "parameters": parameters, **(request or {})}
        return self.http.post("/generate", json=body)

    def submit(self, request_id=None, **params):
        return self.service.submit("scripted", [Text("Hello.")], params, request_id=request_id)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that bear the labels, as `/metrics` tells it."""
        families = text_string_to_metric_families(self.http.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def runs(self, walk: str) -> float:
        """How many node runs a walk has had so far."""
        return self.metric("mstar_batch_calls_total", walk=walk)

    def held(self) -> dict[str, float]:
        """What requests hold now; the scrape itself is one request in flight."""
        return {name: self.metric(name) - (name == "mstar_http_requests_in_flight") for name in HELD}


def wait_for(condition) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


THREE_WORKERS = {
    "workers": {name: {"device": "cpu", "threads": 1} for name in ("reading", "writing", "speaking")},
    "groups": [
        {"nodes": ["reader", "counter"], "worker": "reading"},
        {"nodes": ["writer"], "worker": "writing"},
        {"nodes": ["speaker"], "worker": "speaking"},
    ],
}
"""Every edge of the scripted model goes from one worker to another; the first one walks no walk of its own."""

NARROW = {"models": {"scripted": {"running": 1, "waiting": 1}}}


@pytest.fixture(scope="session", params=["threads", "processes"])
def start(request, tmp_path_factory):
    """Starts the service for a placement given as a mapping, in threads or as processes.

    As processes there are three workers, which find the scripted model as an installed plugin.
    """
    if request.param == "threads":
        return lambda fields: Service.start(
            ["scripted"], registry=registry_with(scripted), placement=Placement.model_validate(fields)
        )
    directory = tmp_path_factory.mktemp("site-packages")
    distributions.install(directory, "mstar-scripted", SCRIPTED)

    def start_processes(fields):
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(directory)
            patch.setenv(env.PLUGINS.name, "mstar-scripted")
            placement = Placement.model_validate({**THREE_WORKERS, **fields})
            return Service.start(["scripted"], placement=placement, processes=True)

    return start_processes


@contextmanager
def served(service: Service) -> Iterator[Served]:
    with (
        service,
        http_server(service, ServerSettings(port=0, drain_s=5)) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        yield Served(service, http)


@pytest.fixture(scope="session")
def shared_server(start):
    with served(start({})) as server:
        yield server


@pytest.fixture
def server(shared_server):
    """The session's server; whatever a test did, nothing may be left of it."""
    yield shared_server
    assert_at_rest(shared_server)


@pytest.fixture(scope="session")
def shared_narrow_server(start):
    with served(start(NARROW)) as server:
        yield server


@pytest.fixture
def narrow_server(shared_narrow_server):
    """Runs one request at a time and lets one wait."""
    yield shared_narrow_server
    assert_at_rest(shared_narrow_server)


def assert_at_rest(server: Served) -> None:
    """Nothing is held, nothing runs, and every request that was submitted has ended exactly once."""
    assert wait_for(lambda: not any(server.held().values())), server.held()
    calls = server.metric("mstar_batch_calls_total")
    submitted = server.metric("mstar_requests_submitted_total")
    assert wait_for(lambda: server.metric("mstar_requests_ended_total") == submitted)
    assert server.metric("mstar_batch_calls_total") == calls


@pytest.fixture
def eventually():
    """Waits until a condition holds; says whether it came to hold."""
    return wait_for


@pytest.fixture
def sound():
    """The samples that a request is to make: float32, `ITEM_SAMPLES` per item."""

    def make(items: int, *, code: int = 1, seed: int = 0, high: bool = False) -> np.ndarray:
        values = [scripted.sample_of(code, seed, step, high=high) for step in range(items)]
        return np.repeat(np.array(values, dtype=np.float32), scripted.ITEM_SAMPLES)

    return make


@pytest.fixture
def pcm(sound):
    """The same as the body of a pcm response."""
    return lambda items, **how: to_pcm(sound(items, **how)).tobytes()


@pytest.fixture
def audio_of():
    """The samples of a whole `/generate` answer."""

    def read(answer: httpx.Response) -> np.ndarray:
        assert answer.status_code == 200, answer.text
        parts = [part for part in answer.json()["outputs"] if part["type"] == "audio"]
        return np.concatenate(
            [np.zeros(0, np.float32), *(np.frombuffer(base64.b64decode(part["data"]), "<f4") for part in parts)]
        )

    return read


@pytest.fixture
def decoded():
    """An encoded body's samples (int16 [samples]), by one pass of FFmpeg's decoder over the whole of it."""

    def decode(body: bytes) -> np.ndarray:
        with av.open(io.BytesIO(body)) as container:
            resampler = av.AudioResampler("s16", "mono", scripted.RATE)
            frames = [made for frame in container.decode(audio=0) for made in resampler.resample(frame)]
            frames += resampler.resample(None)
        return np.concatenate([frame.to_ndarray()[0] for frame in frames])

    return decode


@pytest.fixture
def events():
    """(name, data) of each event of a server-sent body."""

    def read(text: str) -> list[tuple[str, dict]]:
        blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
        pairs = [block.removeprefix("event: ").split("\ndata: ") for block in blocks]
        return [(name, json.loads(data)) for name, data in pairs]

    return read
