import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from mstar_core.client.service import Health, ServedModel, Service
from mstar_core.client.ticket import Made, Ticket
from mstar_core.errors import Cancelled, Conflict, InvalidRequest, NodeFailed, RequestError
from mstar_core.server.settings import ServerSettings
from mstar_core.spec.content import Audio, Text
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig, ModelSpec
from mstar_core.spec.params import SEED, Parameter, check_parameters
from mstar_core.testing import toy_painter
from mstar_core.testing.plugins import registry_with
from mstar_core.testing.server import http_server
from mstar_core.wire.messages import Ended, Sample, WorkerState

RATE = 24_000
VOICES = ("tara", "leo")


class PassThrough:
    """A renderer for events that are content already."""

    def output(self, modality, value):
        return value

    def finish(self):
        return ()

    def usage(self, tokens):
        return tokens


@dataclass
class ScriptedService:
    """Stands in for the runtime: real tickets, whose events `script` gives.

    A script is a list of content, seconds to wait, errors to fail with, and a finish reason (default "stop").
    """

    models: dict[str, ServedModel]
    script: list[Any] = field(default_factory=list)
    state: Health | None = None
    workers: dict[str, WorkerState] = field(default_factory=dict)
    seen: list[dict[str, Any]] = field(default_factory=list)
    running: dict[str, threading.Event] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)

    def submit(self, model, content, params, *, outputs=None, request_id=None, timeout=None):
        checked = check_parameters(self.models[model].parameters, params)
        for part in content:
            if isinstance(part, Text) and part.text == "unspeakable":
                raise InvalidRequest("'input' has nothing that can be spoken", param="input")
        if request_id in self.running:
            raise Conflict(f"a request with the id {request_id!r} is already being served", param="request_id")
        asked = {"content": content, "params": checked, "outputs": outputs, "id": request_id, "timeout": timeout}
        self.seen.append({"model": model, **asked})
        stop = self.running[request_id] = threading.Event()
        ticket = Ticket(request_id, PassThrough(), lambda: self._cancel(request_id))
        threading.Thread(target=self._play, args=(ticket, list(self.script), stop), daemon=True).start()
        return ticket

    def _cancel(self, request_id):
        stop = self.running.get(request_id)
        if stop is not None and not stop.is_set():
            self.cancelled.append(request_id)
            stop.set()

    def _play(self, ticket, script, stop):
        reason = "stop"
        for step in script:
            if isinstance(step, (int, float)):
                stop.wait(step)
            if stop.is_set():
                return self._end(ticket, Cancelled("the request was cancelled"))
            if isinstance(step, RequestError):
                return self._end(ticket, step)
            if isinstance(step, str):
                reason = step
            elif not isinstance(step, (int, float)):
                ticket.deliver(Made("content", step, lambda: None))
        return self._end(ticket, Ended(ticket.id, reason, 0, {"input_tokens": 3, "output_tokens": 7}))

    def _end(self, ticket, end):
        del self.running[ticket.id]
        ticket.deliver(end)

    def health(self):
        return self.state

    def metrics(self):
        return [
            Sample("mstar_requests_submitted", "counter", "Requests.", {}, len(self.seen)),
            Sample("mstar_pages", "gauge", "Pages.", {"node": "a"}, 5),
            Sample("mstar_pages", "gauge", "Pages.", {"node": "b"}, 6),
            Sample("mstar_up", "gauge", "Answers.", {"party": "conductor"}, 1),
            Sample("mstar_up", "gauge", "Answers.", {"party": "w0", "host": "far"}, 0),
            Sample("mstar_wait", "histogram", "Wait.", {"node": "a"}, 2.5, [(0.5, 3), (1.0, 4), (float("inf"), 5)]),
        ]


def served(name: str, inputs, outputs, routes, parameters) -> ServedModel:
    card = ModelCard(
        name=name,
        family="toy",
        summary="A scripted model.",
        inputs=inputs,
        outputs=outputs,
        checkpoints=(Checkpoint(name="tiny", source="package:tiny"),),
        routes=routes,
    )
    config = ModelConfig(values=None, parameters=parameters)
    spec = ModelSpec(card=card, config=config, nodes=(), walks=(), edges=(), inputs=(), machine=None)
    return ServedModel(spec, (*parameters, SEED), processor=None, checkpoint="tiny")


READY = Health(live=True, ready=True, models={"speaker": "ready", "everything": "ready"}, workers={"w0": "ready"})


WORKERS = {"w0": WorkerState("ready", {"speaker": ["writer"]}, "cuda:0", 2**30, 2**20)}


@pytest.fixture(scope="session")
def scripted():
    """Makes a scripted service of models: by name, their inputs, outputs, routes and parameters."""
    return lambda models: ScriptedService({name: served(name, *about) for name, about in models.items()})


@pytest.fixture(scope="module")
def shared_service():
    """Serves `speaker` (text to speech) and `everything` (any content to any content)."""
    voice = Parameter(name="voice", kind="str", default="tara", choices=VOICES, doc="Who speaks.")
    heat = Parameter(name="temperature", kind="float", default=0.6, minimum=0, maximum=2)
    kinds = ("text", "audio", "image", "video", "tensor")
    return ScriptedService(
        {
            "speaker": served("speaker", ("text",), ("audio",), ("/v1/audio/speech",), (voice, heat)),
            "everything": served("everything", kinds, kinds, (), (heat,)),
        }
    )


@pytest.fixture
def service(shared_service):
    """The service behind the module's server, as new."""
    shared_service.script, shared_service.state, shared_service.workers = [], READY, dict(WORKERS)
    shared_service.seen.clear()
    shared_service.cancelled.clear()
    return shared_service


@pytest.fixture(scope="module")
def settings():
    return ServerSettings(port=0, drain_s=5, keepalive_s=0.1, max_body_bytes=100_000)


@pytest.fixture(scope="module")
def url(shared_service, settings) -> Iterator[str]:
    with http_server(shared_service, settings) as url:
        yield url


@pytest.fixture
def http(url, service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=20) as client:
        yield client


@pytest.fixture(scope="session")
def painter():
    """The toy painter behind the real runtime."""
    with Service.start(["toy-painter"], registry=registry_with(toy_painter)) as service:
        yield service


@pytest.fixture(scope="session")
def painter_url(painter) -> Iterator[str]:
    with http_server(painter, ServerSettings(port=0, drain_s=5, keepalive_s=0.1)) as url:
        yield url


@pytest.fixture
def painter_client(painter_url) -> Iterator[openai.OpenAI]:
    """OpenAI's client, of the toy painter."""
    with openai.OpenAI(base_url=f"{painter_url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def tone():
    """`count` pieces of a tone of `seconds` each, that fit together."""

    def make(count: int = 4, seconds: float = 0.1) -> list[Audio]:
        length = round(seconds * RATE)
        time = np.arange(count * length) / RATE
        samples = (0.3 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)
        return [Audio(samples[index * length : (index + 1) * length], RATE) for index in range(count)]

    return make


@pytest.fixture
def pcm():
    """The 16-bit body of pieces of audio."""
    return lambda pieces: b"".join((piece.samples * np.float32(32767)).astype("<i2").tobytes() for piece in pieces)


@pytest.fixture
def eventually():
    """Waits for a condition, up to the second in which everything must be free again."""

    def wait(condition, seconds: float = 1.0) -> bool:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        return condition()

    return wait


@pytest.fixture
def failure() -> NodeFailed:
    return NodeFailed("node 'decoder' in walk 'speak' raised ValueError: boom")
