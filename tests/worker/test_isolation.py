"""What a plugin's code may do wrong on a worker: its request fails, the worker and everything else go on."""

import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from mstar_core.client.service import Service
from mstar_core.engines.stateless import StatelessNode
from mstar_core.errors import Cancelled, InvalidRequest, NodeFailed
from mstar_core.plugins.hookspecs import hookimpl
from mstar_core.spec.content import Prepared, Text
from mstar_core.spec.graph import Emit, Loop, Node, Param, Port, RequestInput, Run, Sequential, Walk, WalkSet
from mstar_core.spec.machine import Start, Transition
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig
from mstar_core.spec.params import Parameter
from mstar_core.testing import counting
from mstar_core.testing.counting_engine import CountingEngine
from mstar_core.testing.plugins import registry_with

WRONGS = ("", "open", "signature", "forward", "nothing", "no output", "unsendable", "close", "third run")


class Moody(StatelessNode):
    """Does one thing wrong, as its request says."""

    def __init__(self, context):
        pass

    def open(self, request):
        return complain("open", request)

    def signature(self, call):
        complain("signature", call.request)
        return super().signature(call)

    def forward(self, calls):
        return [self._one(call) for call in calls]

    def _one(self, call):
        complain("forward", call.request)
        if call.step == 2:
            complain("third run", call.request)
        given = {"nothing": None, "no output": {}, "unsendable": {"value": torch.ones(1, device="meta")}}
        return given.get(call.request.params["wrong"], {"value": torch.ones(1)})

    def close(self, request):
        complain("close", request)


def complain(what, request):
    if request.params["wrong"] == what:
        raise RuntimeError(f"wrong {what}")


class MoodyPlugin:
    @hookimpl
    def mstar_models(self):
        tiny = Checkpoint(name="tiny", source="mstar_core:testing")
        return [
            ModelCard(
                name="moody", family="moody", summary="", inputs=("text",), outputs=("tensor",), checkpoints=(tiny,)
            )
        ]

    @hookimpl
    def mstar_config(self, card, checkpoint):
        wrong = Parameter(name="wrong", kind="str", default="", choices=WRONGS)
        return ModelConfig(values=None, parameters=(wrong, Parameter(name="times", kind="int")))

    @hookimpl
    def mstar_nodes(self, card, config):
        ports = {"inputs": (Port("text", "int64", (1,)),), "outputs": (Port("value", "float32", (1,)),)}
        return (Node(name="moody", engine="stateless", factory=Moody, **ports),)

    @hookimpl
    def mstar_walks(self, card, config):
        body = Sequential(Loop(Run("moody"), times=Param("times")), Emit("value", "tensor"))
        text = RequestInput(name="text", dtype="int64", shape=(1,), modality="text")
        return WalkSet(walks=(Walk(name="walk", partition="main", body=body),), inputs=(text,))

    @hookimpl
    def mstar_state_machine(self, card, config):
        return SimpleNamespace(
            start=lambda request: Transition(state=0, start=(Start("walk"),)),
            advance=lambda state, event: Transition(state=0, end="stop"),
            demand=lambda request: {},
        )

    @hookimpl
    def mstar_processor(self, card, config, checkpoint):
        return MoodyProcessor()


class TalkativePlugin(MoodyPlugin):
    """Emits in every round of a loop whose rounds do not depend on each other, so that they run ahead."""

    @hookimpl
    def mstar_walks(self, card, config):
        body = Loop(Sequential(Run("moody"), Emit("value", "tensor")), times=Param("times"))
        text = RequestInput(name="text", dtype="int64", shape=(1,), modality="text")
        return WalkSet(walks=(Walk(name="walk", partition="main", body=body),), inputs=(text,))


class MoodyProcessor(counting.CountingProcessor):
    def prepare(self, content, params):
        return Prepared(inputs={"text": [torch.zeros(1, dtype=torch.int64).numpy()]}, params=params)


@pytest.fixture
def moody():
    with Service.start(["moody"], registry=registry_with(MoodyPlugin())) as service:
        yield partial(submitted, service)
        assert at_rest(service)


def submitted(service, *, wrong="", times=2):
    given = {} if times is None else {"times": times}
    return service.submit("moody", [Text("hello")], {"wrong": wrong, **given})


def hear(ticket, heard):
    for content in ticket:
        heard.append(content)


def held(service, *names):
    return sum(sample.value for sample in service.metrics() if sample.name in names)


def eventually(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def at_rest(service):
    """Whether everything comes free, and stays ready."""
    names = ("mstar_requests_open", "mstar_worker_requests", "mstar_tensors_published")
    return eventually(lambda: not held(service, *names)) and service.health().ready


FAILURES = {
    "open": "node 'moody' failed to take the request in: RuntimeError: wrong open",
    "signature": "node 'moody' failed in walk 'walk': RuntimeError: wrong signature",
    "forward": "node 'moody' failed in walk 'walk': RuntimeError: wrong forward",
    "nothing": "outputs must be a mapping of ports to values, got NoneType",
    "no output": "node 'moody' gave no output 'value' in walk 'walk'",
    "unsendable": "a value in walk 'walk' cannot be emitted as tensor",
}


@pytest.mark.parametrize("wrong", FAILURES)
def test_a_node_that_goes_wrong_anywhere_fails_its_request_only(moody, wrong, caplog):
    beside = [moody() for _ in range(4)]
    with pytest.raises(NodeFailed, match=FAILURES[wrong]):
        list(moody(wrong=wrong))
    assert [len(list(ticket)) for ticket in [*beside, moody()]] == [1] * 5


def test_a_node_that_cannot_free_a_request_is_logged_and_the_request_is_free(moody, caplog):
    assert len(list(moody(wrong="close"))) == 1
    assert len(list(moody())) == 1
    assert "could not free a request" in caplog.text


def test_a_loop_without_a_bound_is_the_requests_fault(moody):
    with pytest.raises(InvalidRequest, match="'times' must be given"):
        list(moody(times=None))
    assert len(list(moody())) == 1


def test_a_request_cancelled_while_its_batch_runs_is_free_even_if_the_batch_raises(monkeypatch):
    running, go_on = threading.Event(), threading.Event()

    def run(engine, batch):
        running.set()
        go_on.wait(20)
        raise RuntimeError("told to fail")

    monkeypatch.setattr(CountingEngine, "run", run)
    with Service.start(["counting"], registry=registry_with(counting)) as service:
        ticket = service.submit("counting", [Text("go")], {})
        assert running.wait(20)
        ticket.cancel()
        with pytest.raises(Cancelled):
            list(ticket)
        after = service.submit("counting", [Text("go")], {})
        assert eventually(lambda: held(service, "mstar_worker_requests") == 2)  # so the first one's end is known there
        go_on.set()
        with pytest.raises(NodeFailed):
            list(after)
        assert at_rest(service)


def test_nothing_that_ran_ahead_of_a_failed_run_reaches_the_client():
    with Service.start(["moody"], registry=registry_with(TalkativePlugin())) as service:
        for _ in range(20):
            heard = []
            with pytest.raises(NodeFailed, match="wrong third run"):
                hear(submitted(service, wrong="third run", times=9), heard)
            assert len(heard) <= 2
        assert at_rest(service)
