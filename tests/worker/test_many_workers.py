"""Models whose nodes are on several workers: what they make is always the same, and nothing is left of any request."""

import time
from contextlib import contextmanager
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mstar_core.client.service import Service
from mstar_core.engines.stateless import StatelessNode
from mstar_core.errors import Cancelled, NodeFailed
from mstar_core.plugins.hookspecs import hookimpl
from mstar_core.spec.chunks import LeftContextChunkPolicy
from mstar_core.spec.content import Audio, Prepared, Text
from mstar_core.spec.graph import (
    DynamicLoop,
    Emit,
    Loop,
    Node,
    Port,
    RequestInput,
    Run,
    Sequential,
    StreamEnd,
    StreamingEdge,
    Walk,
    WalkSet,
)
from mstar_core.spec.machine import Start, Transition
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig
from mstar_core.spec.params import Parameter
from mstar_core.spec.placement import Placement
from mstar_core.testing import counting, scripted
from mstar_core.testing.plugins import registry_with
from mstar_core.wire.messages import EMIT_WINDOW

PATIENCE_S = 20.0

HELD = (
    "mstar_requests_open",
    "mstar_worker_requests",
    "mstar_worker_load",
    "mstar_tensors_published",
    "mstar_stream_items",
    "mstar_ready_calls",
)
"""Gauges that are 0 in a server that serves nobody."""


class Served:
    """A service of one model."""

    def __init__(self, service, model):
        self.service = service
        self.model = model

    def submit(self, outputs=None, **params):
        return self.service.submit(self.model, [Text("Hello.")], {"seed": 1, **params}, outputs=outputs)

    def metric(self, *names, **labels):
        samples = self.service.metrics()
        return sum(each.value for each in samples if each.name in names and labels.items() <= each.labels.items())

    def calls(self, **labels):
        """How many node runs there have been."""
        return self.metric("mstar_batch_calls", **labels)

    def at_rest(self):
        return eventually(lambda: not self.metric(*HELD)) and self.metric("mstar_restarts") == 0


@contextmanager
def serving(model, registry, groups=()):
    names = {name for group in groups for name in [*group["worker"]]}
    workers = {name: {"device": "cpu", "threads": 1} for name in ("first", *sorted(names - {"first"}))}
    placement = Placement.model_validate({"workers": workers, "groups": groups})
    with Service.start([model], registry=registry, placement=placement) as service:
        served = Served(service, model)
        yield served
        assert served.at_rest(), {name: served.metric(name) for name in HELD}


def eventually(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return held


def made(ticket):
    """The audio and the tensors of a request, each in its order, why it ended, and what was counted."""
    contents = list(ticket)
    audio = [content.samples.tolist() for content in contents if isinstance(content, Audio)]
    tensors = [content.array.tolist() for content in contents if not isinstance(content, Audio)]
    return audio, tensors, ticket.end.reason, dict(ticket.end.usage)


def group(nodes, *workers):
    return {"nodes": list(nodes), "worker": list(workers)}


NODES = ("reader", "counter", "writer", "speaker")

SHAPES = {
    **{f"{node} apart": [group([node], "second")] for node in NODES},
    **{f"{one} and {other} apart": [group([one, other], "second")] for one, other in combinations(NODES, 2)},
    "every node apart": [group([node], name) for node, name in zip(NODES, "abcd", strict=True)],
    **{f"replicas of {node}": [group([node], "second", "third")] for node in NODES},
    "replicas of all": [group(NODES, "second", "third")],
}

REQUESTS = (
    {},
    {"items": 0},
    {"items": 1, "voice": "high"},
    {"items": 30, "code": 7},
    {"items": 9, "max_items": 3},
    {"rounds": 1, "items": 2},
    {"rounds": 40, "items": 0},
    {"rounds": 5, "items": 8, "max_items": 8},
    {"rounds": 3, "outputs": frozenset({"audio"})},
    {"rounds": 3, "outputs": frozenset({"tensor"})},
)


@pytest.fixture(scope="module")
def registry():
    return registry_with(scripted)


@pytest.fixture(scope="module")
def expected(registry):
    """What one worker makes of the requests."""
    with serving("scripted", registry) as served:
        return [made(served.submit(seed=seed, **request)) for seed, request in enumerate(REQUESTS)]


@pytest.fixture(scope="module", params=SHAPES)
def server(request, registry):
    with serving("scripted", registry, SHAPES[request.param]) as served:
        yield served


def test_a_request_alone_makes_what_it_makes_on_one_worker(server, expected):
    assert [made(server.submit(seed=seed, **request)) for seed, request in enumerate(REQUESTS)] == expected


def test_requests_at_the_same_time_make_what_they_make_on_one_worker(server, expected):
    tickets = [server.submit(seed=seed, **request) for seed, request in enumerate(REQUESTS)]
    assert [made(ticket) for ticket in tickets] == expected


def test_every_worker_has_had_its_part(server):
    calls = {name: server.calls(worker=name) for name in server.service.workers}
    assert all(calls.values()), calls


@pytest.mark.parametrize(("node", "run"), [("reader", 0), ("writer", 0), ("writer", 3), ("speaker", 1)])
def test_a_node_that_raises_is_named_and_fails_its_request_only(server, node, run, expected, caplog):
    walk = {"reader": "prefill", "writer": "write", "speaker": "speak"}[node]
    beside = [server.submit(seed=seed, **request) for seed, request in enumerate(REQUESTS)]
    with pytest.raises(NodeFailed, match=f"node '{node}' failed in walk '{walk}': RuntimeError: {node} was told"):
        list(server.submit(fail=node, fail_at=run))
    assert [made(ticket) for ticket in beside] == expected


PHASES = {
    "at once": ({"items": 9}, lambda server, before: True),
    "while it counts": ({"rounds": 10_000}, lambda server, before: server.calls(walk="count") > before["count"] + 5),
    "while it writes": (
        {"items": 10_000, "delay_ms": 1},
        lambda server, before: server.calls(walk="write") > before["write"] + 5,
    ),
    "while it speaks": (
        {"items": 10_000, "slow_speaker_ms": 10},
        lambda server, before: server.calls(walk="speak") > before["speak"] + 2,
    ),
    "while nobody reads": (
        {"items": 10_000},
        lambda server, before: server.calls(walk="speak") == before["speak"] + EMIT_WINDOW,
    ),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_request_that_is_aborted_is_free_on_every_worker(server, phase):
    params, reached = PHASES[phase]
    before = {walk: server.calls(walk=walk) for walk in ("count", "write", "speak")}
    ticket = server.submit(**params)
    assert eventually(lambda: reached(server, before))
    ticket.cancel()
    with pytest.raises(Cancelled):
        list(ticket)
    assert server.at_rest()


CAPACITY = 8
"""Items in the buffer of the scripted model's stream: four chunks of two."""


def test_a_request_that_nobody_reads_stops_at_the_window_and_goes_on_when_it_is_read(server):
    spoken, written = server.calls(walk="speak"), server.calls(walk="write")
    ticket = server.submit(items=300, code=3)
    assert eventually(lambda: server.calls(walk="speak") == spoken + EMIT_WINDOW)
    assert eventually(lambda: server.calls(walk="write") == written + 2 * EMIT_WINDOW + CAPACITY)
    assert server.metric("mstar_stream_items") == CAPACITY
    samples = np.concatenate([content.samples for content in ticket])
    values = [scripted.sample_of(3, 1, step) for step in range(300)]
    np.testing.assert_array_equal(samples, np.repeat(np.float32(values), scripted.ITEM_SAMPLES))
    assert server.calls(walk="write") == written + 301


def test_a_slow_speaker_holds_the_writer_back(server):
    beside = server.submit(items=20)
    ticket = server.submit(items=60, slow_speaker_ms=1)
    full = [server.metric("mstar_stream_items") for _ in ticket]
    assert max(full) <= 2 * CAPACITY
    assert len(full) == 30
    assert len(list(beside)) == 10


VALUES = (
    3,
    2.5,
    True,
    "ä and 語",
    np.float64(0.1),
    np.int64(-7),
    np.bool_(True),
    2**63,
    torch.arange(6).view(2, 3).T,
    torch.ones(2).bfloat16() / 3,
    torch.tensor(True),
    torch.zeros(0, 3),
    torch.arange(40_000, dtype=torch.float32),
    (1, torch.tensor(2.0), "three"),
)
"""What a node may give to one on another worker."""

UNSENDABLE = {
    "object": (object(), "a value of type object cannot go to another worker; give tensors, numbers or text"),
    "mapping": ({"a": 1}, "a value of type dict cannot go to another worker"),
    "too large": (2**64, "OverflowError"),
    "half a character": ("\ud800", "UnicodeEncodeError"),
    "sparse": (torch.eye(2).to_sparse(), "make it dense first"),
}


def shown(value):
    """A value in words, the same for what means the same."""
    match value:
        case torch.Tensor():
            return f"{value.dtype} {list(value.shape)} {value.flatten()[:9].tolist()} {value.sum().item()}"
        case list() | tuple():
            return [shown(each) for each in value]
        case np.generic():
            return shown(value.item())
    return value


class Making(StatelessNode):
    """One of the values per run."""

    def __init__(self, context):
        pass

    def forward(self, calls):
        return [self._one(call) for call in calls]

    def _one(self, call):
        wrong = call.request.params["wrong"]
        value = UNSENDABLE[wrong][0] if wrong else VALUES[call.step]
        return {"value": value, "nothing": None, "item": torch.tensor(call.step)}


class Taking(StatelessNode):
    """What it was given, in words."""

    def __init__(self, context):
        pass

    def forward(self, calls):
        return [self._one(call) for call in calls]

    def _one(self, call):
        words = repr(sorted((port, shown(value)) for port, value in call.inputs.items()))
        return {"said": torch.tensor([ord(character) for character in words])}


class Idle(StatelessNode):
    """Runs often, so that the partition is at home with it."""

    def __init__(self, context):
        pass

    def forward(self, calls):
        return [{} for _ in calls]


class Listening(StatelessNode):
    """Its chunk and the request's text, in numbers."""

    def __init__(self, context):
        pass

    def forward(self, calls):
        return [self._one(call) for call in calls]

    def _one(self, call):
        chunk = call.inputs["items"]
        numbers = [chunk.context, chunk.position, chunk.final, *chunk.items, *call.inputs["text"][:2]]
        return {"heard": torch.tensor(numbers)}


def node(name, factory, inputs=(), outputs=()):
    return Node(name=name, engine="stateless", inputs=inputs, outputs=outputs, factory=factory)


class MixedPlugin:
    """The model `mixed`: values of all kinds between nodes, none of which is at home, and an input read twice."""

    @hookimpl
    def mstar_models(self):
        tiny = Checkpoint(name="tiny", source="mstar_core:testing")
        return [
            ModelCard(
                name="mixed", family="mixed", summary="", inputs=("text",), outputs=("tensor",), checkpoints=(tiny,)
            )
        ]

    @hookimpl
    def mstar_config(self, card, checkpoint):
        wrong = Parameter(name="wrong", kind="str", default="", choices=("", *UNSENDABLE))
        return ModelConfig(values=None, parameters=(wrong,))

    @hookimpl
    def mstar_nodes(self, card, config):
        made = (Port("value"), Port("nothing", sparse=True), Port("item", "int64", ()))
        text = Port("text", "int64", ("n",))
        taken = (Port("values"), Port("last"), Port("nothing", sparse=True), text)
        return (
            node("making", Making, (text,), made),
            node("taking", Taking, taken, (Port("said", "int64", ("m",)),)),
            node("idle", Idle),
            node("listening", Listening, (Port("items", "int64", ()), text), (Port("heard", "int64", ("k",)),)),
            node("idling", Idle),
        )

    @hookimpl
    def mstar_walks(self, card, config):
        round_ = Sequential(Run("making", outputs={"value": "last"}), *[Run("idle")] * 2)
        gathered = Sequential(Run("making"), *[Run("idle")] * 2)
        hear = Sequential(Run("listening"), *[Run("idling")] * 2, Emit("heard", "tensor"))
        return WalkSet(
            walks=(
                Walk(
                    name="talk",
                    partition="talking",
                    body=Sequential(
                        Loop(gathered, times=len(VALUES) - 1, gather=("value",)),
                        round_,
                        Run("taking", inputs={"values": "value"}),
                        Emit("said", "tensor"),
                    ),
                ),
                Walk(
                    name="listen",
                    partition="listening",
                    body=DynamicLoop(hear, at_most=None, until=StreamEnd("listening", "items")),
                ),
            ),
            edges=(
                StreamingEdge(source="making.item", target="listening.items", policy=LeftContextChunkPolicy(2, left=3)),
            ),
            inputs=(RequestInput(name="text", dtype="int64", shape=("n",), modality="text"),),
        )

    @hookimpl
    def mstar_state_machine(self, card, config):
        def advance(state, event):
            if event.walk == "talk":
                return Transition(state=state, finish=("talking",))
            return Transition(state=state, end="stop")

        return SimpleNamespace(
            start=lambda request: Transition(state=0, start=(Start("talk"), Start("listen"))),
            advance=advance,
            demand=lambda request: {},
        )

    @hookimpl
    def mstar_processor(self, card, config, checkpoint):
        return MixedProcessor()


class MixedProcessor(counting.CountingProcessor):
    def prepare(self, content, params):
        return Prepared(inputs={"text": [np.arange(20_000)]}, params=params)


MIXED_SHAPES = {
    "makers apart": [group(["making"], "second")],
    "takers apart": [group(["taking", "listening"], "second")],
    "both apart, together": [group(["making", "taking", "listening"], "second")],
    "every node apart": [group(["making"], "second"), group(["taking"], "third"), group(["listening"], "fourth")],
    "every node and every home apart": [
        group(["making"], "a"),
        group(["taking"], "b"),
        group(["listening"], "c"),
        group(["idling"], "d"),
    ],
}


@pytest.fixture(scope="module")
def mixed_registry():
    return registry_with(MixedPlugin())


@pytest.fixture(scope="module")
def expected_mixture(mixed_registry):
    with serving("mixed", mixed_registry) as served:
        return sorted(made(served.submit())[1])


@pytest.fixture(scope="module", params=MIXED_SHAPES)
def mixed(request, mixed_registry):
    with serving("mixed", mixed_registry, MIXED_SHAPES[request.param]) as served:
        yield served


def test_what_a_node_gives_to_another_worker_arrives_as_it_is(mixed, expected_mixture):
    tickets = [mixed.submit() for _ in range(3)]
    assert [sorted(made(ticket)[1]) for ticket in tickets] == [expected_mixture] * 3


def test_the_mixture_is_worth_comparing(expected_mixture):
    said = max(expected_mixture, key=len)
    words = "".join(map(chr, said))
    assert "('nothing', None)" in words
    assert "ä and 語" in words
    assert f"('values', {[shown(value) for value in VALUES[:-1]]})" in words


@pytest.mark.parametrize("wrong", UNSENDABLE)
def test_what_cannot_go_to_another_worker_fails_its_request_only(mixed, wrong, expected_mixture, caplog):
    beside = mixed.submit()
    with pytest.raises(NodeFailed, match=rf"node '(making|taking)' failed in walk 'talk': .*{UNSENDABLE[wrong][1]}"):
        list(mixed.submit(wrong=wrong))
    assert sorted(made(beside)[1]) == expected_mixture
