"""A node that does a part of another one's work, where the placement gives it a worker: the result is the same."""

import numpy as np
import pytest
import torch

from mstar_core import hookimpl
from mstar_core.engines.stateless import StatelessNode
from mstar_core.spec.content import Prepared, Tensor
from mstar_core.spec.graph import Emit, Loop, Node, Parallel, Port, RequestInput, Run, Sequential, Walk, WalkSet
from mstar_core.spec.machine import Start, Transition
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig
from mstar_core.testing.plugins import registry_with

ROUNDS = 5


class Squaring(StatelessNode):
    """The squares of a number and of its successor; the second only where nobody helps."""

    def __init__(self, context):
        self.alone = "helper" not in context.placed

    def forward(self, calls):
        return [self._one(int(call.inputs["number"])) for call in calls]

    def _one(self, number):
        return {"square": torch.tensor(number**2), **({"other": torch.tensor((number + 1) ** 2)} if self.alone else {})}


class Helping(StatelessNode):
    """The square of a number's successor."""

    def __init__(self, context):
        assert "helper" in context.placed

    def forward(self, calls):
        return [{"help": (call.inputs["number"] + 1) ** 2} for call in calls]


class Adding(StatelessNode):
    """The sum of the squares, and the next number."""

    def __init__(self, context):
        pass

    def forward(self, calls):
        return [self._one(**call.inputs) for call in calls]

    def _one(self, number, square, other, help):
        assert (other is None) != (help is None)
        return {"sum": square + (help if other is None else other), "number": number + 1}


def number(name, sparse=False):
    return Port(name, "int64", (), sparse=sparse)


class SharingPlugin:
    @hookimpl
    def mstar_models(self):
        tiny = Checkpoint(name="tiny", source="mstar_core:testing")
        kinds = {"inputs": ("text",), "outputs": ("tensor",), "checkpoints": (tiny,)}
        return [ModelCard(name="sharing", family="sharing", summary="", **kinds)]

    @hookimpl
    def mstar_config(self, card, checkpoint):
        return ModelConfig(values=None, parameters=())

    @hookimpl
    def mstar_nodes(self, card, config):
        squares = (number("square"), number("other", sparse=True))
        summands = (number("number"), number("square"), number("other", sparse=True), number("help", sparse=True))
        common = {"engine": "stateless"}
        return (
            Node(name="squarer", inputs=(number("number"),), outputs=squares, factory=Squaring, **common),
            Node(
                name="helper",
                inputs=(number("number"),),
                outputs=(number("help", sparse=True),),
                factory=Helping,
                optional=True,
                **common,
            ),
            Node(name="adder", inputs=summands, outputs=(number("sum"), number("number")), factory=Adding, **common),
        )

    @hookimpl
    def mstar_walks(self, card, config):
        body = Sequential(Parallel(Run("squarer"), Run("helper")), Run("adder"), Emit("sum", "tensor"))
        walk = Walk(name="add", partition="adding", body=Loop(body, times=ROUNDS))
        return WalkSet(walks=(walk,), inputs=(RequestInput(name="number", dtype="int64", shape=()),))

    @hookimpl
    def mstar_state_machine(self, card, config):
        return Machine()

    @hookimpl
    def mstar_processor(self, card, config, checkpoint):
        return Processor()


class Machine:
    def start(self, request):
        return Transition(state=None, start=(Start("add"),))

    def advance(self, state, event):
        return Transition(state=None, end="stop")

    def demand(self, request):
        return {"helper": 10**9}  # nodes that hold no KV, or have no place, are not asked


class Processor:
    def prepare(self, content, params):
        return Prepared(inputs={"number": [np.array(len(content[0].text))]}, params=params)

    def render(self, prepared):
        return Renderer()


class Renderer:
    def output(self, modality, value):
        return Tensor("sum", value)

    def finish(self):
        return ()

    def usage(self, tokens):
        return {}


SHAPES = {
    "without the helper": [],
    "all on one worker": [{"nodes": ["helper"], "worker": ["first"]}],
    "the helper on another": [{"nodes": ["helper"], "worker": ["second"]}],
    "two helpers": [{"nodes": ["helper"], "worker": ["second", "third"]}],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_optional_node_runs_where_it_is_placed_and_the_result_is_the_same(shape, serving):
    with serving(registry_with(SharingPlugin()), "sharing", SHAPES[shape]) as served:
        tickets = [served.submit() for _ in range(8)]
        for ticket in tickets:
            sums = [int(content.array) for content in ticket]
            assert sums == [n**2 + (n + 1) ** 2 for n in range(len("Hello."), len("Hello.") + ROUNDS)]
        helped = served.calls(node="helper")
        assert helped == (8 * ROUNDS if SHAPES[shape] else 0)
