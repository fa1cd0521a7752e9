"""What nodes on different workers give to each other: values of all kinds, lists, chunks, and inputs of the request."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mstar_core.engines.stateless import StatelessNode
from mstar_core.errors import NodeFailed
from mstar_core.plugins.hookspecs import hookimpl
from mstar_core.spec.chunks import LeftContextChunkPolicy
from mstar_core.spec.content import Prepared
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
from mstar_core.testing import counting
from mstar_core.testing.plugins import registry_with

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
            return f"{value.dtype} {list(value.shape)} {value.flatten()[:9].tolist()} {value.double().sum().item()}"
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
        if len(chunk.items) == chunk.context:  # nothing new: the end came after the last item was taken
            assert chunk.final
            return {}
        return {"heard": torch.tensor([chunk.context, chunk.position, *chunk.items, *call.inputs["text"][:2]])}


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
            node(
                "listening",
                Listening,
                (Port("items", "int64", ()), text),
                (Port("heard", "int64", ("k",), sparse=True),),
            ),
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


def group(nodes, worker):
    return {"nodes": nodes, "worker": [worker]}


SHAPES = {
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


def heard(ticket):
    """The tensors of a request; two partitions make them, each in its order."""
    return sorted(content.array.tolist() for content in ticket)


@pytest.fixture(scope="module")
def registry():
    return registry_with(MixedPlugin())


@pytest.fixture(scope="module")
def expected(registry, serving):
    with serving(registry, "mixed") as served:
        return heard(served.submit())


@pytest.fixture(scope="module", params=SHAPES)
def server(request, registry, serving):
    with serving(registry, "mixed", SHAPES[request.param]) as served:
        yield served


def test_what_a_node_gives_to_another_worker_arrives_as_it_is(server, expected):
    tickets = [server.submit() for _ in range(3)]
    assert [heard(ticket) for ticket in tickets] == [expected] * 3


def test_the_mixture_is_worth_comparing(expected):
    said = max(expected, key=len)
    words = "".join(map(chr, said))
    assert "('nothing', None)" in words
    assert "ä and 語" in words
    assert f"('values', {[shown(value) for value in VALUES[:-1]]})" in words


@pytest.mark.parametrize("wrong", UNSENDABLE)
def test_what_cannot_go_to_another_worker_fails_its_request_only(server, wrong, expected, caplog):
    beside = server.submit()
    with pytest.raises(NodeFailed, match=rf"node '(making|taking)' failed in walk 'talk': .*{UNSENDABLE[wrong][1]}"):
        list(server.submit(wrong=wrong))
    assert heard(beside) == expected
