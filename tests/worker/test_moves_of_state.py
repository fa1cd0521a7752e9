"""A stateless node that keeps something per request, whose walks are on different workers: what it keeps moves."""

from types import SimpleNamespace

import pytest
import torch

from mstar_core.engines.stateless import StatelessNode
from mstar_core.errors import NodeFailed
from mstar_core.plugins.hookspecs import hookimpl
from mstar_core.spec.graph import Emit, Loop, Node, Parallel, Port, RequestInput, Run, Sequential, Walk, WalkSet
from mstar_core.spec.machine import Start, Transition
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig
from mstar_core.spec.params import Parameter
from mstar_core.testing import counting
from mstar_core.testing.plugins import registry_with

ROUNDS = 3


class Tally(StatelessNode):
    """Counts the runs of a request, by walk."""

    def __init__(self, context):
        pass

    def open(self, request):
        return {}

    def pack(self, request):
        return super().pack(request) if request.params["wrong"] else sorted(request.state.items())

    def unpack(self, request, packed):
        return dict(packed)

    def forward(self, calls):
        return [self._one(call) for call in calls]

    def _one(self, call):
        counts = call.request.state
        counts[call.walk] = counts.get(call.walk, 0) + 1
        return {"total": torch.tensor([counts.get("up", 0), counts.get("down", 0)])}


class Plain(StatelessNode):
    """Keeps nothing."""

    def __init__(self, context):
        pass

    def forward(self, calls):
        return [{"same": call.inputs["total"].clone()} for call in calls]


class TallyPlugin:
    @hookimpl
    def mstar_models(self):
        tiny = Checkpoint(name="tiny", source="mstar_core:testing")
        return [
            ModelCard(
                name="tally", family="tally", summary="", inputs=("text",), outputs=("tensor",), checkpoints=(tiny,)
            )
        ]

    @hookimpl
    def mstar_config(self, card, checkpoint):
        return ModelConfig(values=None, parameters=(Parameter(name="wrong", kind="bool", default=False),))

    @hookimpl
    def mstar_nodes(self, card, config):
        total, value = Port("total", "int64", (2,)), Port("value", "int64", ())
        tally = Node(name="tally", engine="stateless", inputs=(value,), outputs=(total,), factory=Tally)
        same = (Port("same", "int64", (2,)),)
        return (tally, Node(name="plain", engine="stateless", inputs=(total,), outputs=same, factory=Plain))

    @hookimpl
    def mstar_walks(self, card, config):
        twice = Parallel(Run("tally"), Run("tally", outputs={"total": "other"}))
        body = Sequential(Loop(Sequential(twice, Run("tally")), times=2), Run("plain"), Emit("same", "tensor"))
        value = RequestInput(name="value", dtype="int64", shape=())
        return WalkSet(
            walks=tuple(Walk(name=name, partition="main", body=body) for name in ("up", "down")), inputs=(value,)
        )

    @hookimpl
    def mstar_state_machine(self, card, config):
        def advance(walks, event):
            if walks == 2 * ROUNDS:
                return Transition(state=walks, end="stop")
            return Transition(state=walks + 1, start=(Start("down" if walks % 2 else "up"),))

        return SimpleNamespace(start=lambda request: advance(0, None), advance=advance, demand=lambda request: {})

    @hookimpl
    def mstar_processor(self, card, config, checkpoint):
        return counting.CountingProcessor()


def placed(up, down):
    return [
        {"nodes": ["tally", "plain"], "walks": ["up"], "worker": up},
        {"nodes": ["tally", "plain"], "walks": ["down"], "worker": down},
    ]


@pytest.fixture(scope="module")
def registry():
    return registry_with(TallyPlugin())


@pytest.fixture(scope="module", params=[placed(["a"], ["b"]), placed(["b"], ["a", "c"])], ids=["two", "replicas"])
def server(request, registry, serving):
    with serving(registry, "tally", request.param) as served:
        yield served


def totals(ticket):
    return [tuple(content.array.tolist()) for content in ticket]


COUNTS = [(6 * ((walk + 2) // 2), 6 * ((walk + 1) // 2)) for walk in range(2 * ROUNDS)]
"""Six runs a walk."""


def test_what_a_node_keeps_goes_back_and_forth(server):
    assert totals(server.submit()) == COUNTS
    assert [totals(ticket) for ticket in [server.submit() for _ in range(8)]] == [COUNTS] * 8


def test_a_node_that_cannot_pack_what_it_keeps_fails_its_request_only(server):
    beside = server.submit()
    with pytest.raises(NodeFailed, match=r"Tally keeps state of its own .* must implement pack and unpack"):
        totals(server.submit(wrong=True))
    assert totals(beside) == COUNTS
