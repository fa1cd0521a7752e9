import msgspec
import pytest

from mstar_core.engines.base import BatchLimits, Call, Engine, Handover, NodeRequest
from mstar_core.engines.stateless import StatelessEngine, StatelessNode
from mstar_core.errors import NodeFailed
from mstar_core.testing.counting_engine import CountingEngine


class Summing(StatelessNode):
    """Adds up what a request brings."""

    def open(self, request):
        return {"sum": 0}

    def forward(self, calls):
        for each in calls:
            each.request.state["sum"] += each.inputs["value"]
        return [{"sum": each.request.state["sum"]} for each in calls]

    def pack(self, request):
        return dict(request.state)

    def unpack(self, request, packed):
        return dict(packed)


class Silent(StatelessNode):
    """Keeps nothing."""

    def forward(self, calls):
        return [{} for _ in calls]


class Keeping(Silent):
    """Keeps something, and does not say how it travels."""

    def open(self, request):
        return object()


def hand_over(engine, request, other, there):
    batch = engine.leave(request)
    engine.run(batch)
    sent = msgspec.msgpack.encode(engine.left(batch).state)
    other.enter(there, Handover(msgspec.msgpack.decode(sent)))


def summed(engine, request, value):
    batch = engine.collect("walk", [Call(request, "walk", {"value": value}, 0)], BatchLimits())
    engine.run(batch)
    (outcome,) = engine.finish(batch)
    return outcome["sum"]


def test_a_stateless_nodes_state_goes_back_and_forth():
    first, second = StatelessEngine(Summing()), StatelessEngine(Summing())
    here, there = NodeRequest(1, {}, 0), NodeRequest(1, {}, 0)
    first.open(here)
    second.open(there)
    assert summed(first, here, 2) == 2
    hand_over(first, here, second, there)
    assert here.state is None
    assert summed(second, there, 3) == 5
    hand_over(second, there, first, here)
    assert summed(first, here, 4) == 9


@pytest.mark.parametrize("engine", [lambda: StatelessEngine(Silent()), CountingEngine], ids=["stateless", "counting"])
def test_a_node_without_state_hands_over_nothing(engine):
    first, second = engine(), engine()
    here, there = NodeRequest(1, {}, 0), NodeRequest(1, {}, 0)
    first.open(here)
    second.open(there)
    hand_over(first, here, second, there)
    assert there.state is None


def test_a_stateless_node_whose_state_cannot_be_packed_says_what_to_do():
    engine = StatelessEngine(Keeping())
    request = NodeRequest(1, {}, 0)
    engine.open(request)
    with pytest.raises(NodeFailed, match=r"Keeping .* must implement pack and unpack"):
        engine.leave(request)
    assert request.state is not None
    with pytest.raises(NodeFailed, match="must implement"):
        engine.enter(request, Handover({"some": "state"}))


def test_an_engine_that_cannot_hand_over_says_what_to_do():
    class Fixed(CountingEngine):
        leave, enter = Engine.leave, Engine.enter

    request = NodeRequest(1, {}, 0)
    with pytest.raises(NodeFailed, match=r"Fixed cannot hand a request over .* one group"):
        Fixed().leave(request)
    with pytest.raises(NodeFailed, match="one group"):
        Fixed().enter(request, Handover(None))
