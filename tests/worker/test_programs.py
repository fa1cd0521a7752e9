"""Walks compiled and walked by a host that runs nodes as plain functions, at once."""

from collections import deque
from types import SimpleNamespace

import pytest

from mstar_core.engines.base import NodeRequest
from mstar_core.errors import NodeFailed
from mstar_core.spec.chunks import FixedChunkPolicy
from mstar_core.spec.graph import (
    FLAG,
    DynamicLoop,
    Emit,
    Loop,
    Node,
    Parallel,
    Param,
    Port,
    Run,
    Sequential,
    StreamEnd,
    StreamingEdge,
    Walk,
)
from mstar_core.spec.model import ModelCard, ModelConfig, ModelSpec
from mstar_core.worker.program import compile_model
from mstar_core.worker.streams import Stream
from mstar_core.worker.walks import Task, WalkRun, advance, store


def add(value):
    return {"value": (value or 0) + 1}


FUNCTIONS = {
    "add": add,
    "double": lambda value: {"doubled": value * 2},
    "until3": lambda value: {"value": (value or 0) + 1, "stop": (value or 0) + 1 >= 3},
    "listen": lambda heard: {"value": heard.items},
    "silent": lambda value: {},
}


VALUE = Port("value")


def node(name, inputs=("value",), outputs=(VALUE,)):
    ports = tuple(Port(each, sparse=True) for each in inputs)
    return Node(name=name, engine="stateless", inputs=ports, outputs=outputs, factory="none:none")


NODES = (
    node("add"),
    node("double", outputs=(Port("doubled"),)),
    node("until3", outputs=(Port("value"), Port("stop", FLAG))),
    node("listen", inputs=("heard",)),
    node("silent", outputs=(Port("value"),)),
)
EDGE = StreamingEdge(source="double.doubled", target="listen.heard", policy=FixedChunkPolicy(2), capacity=100)


class Host:
    """Runs a node as soon as the walk asks for it, one after another."""

    def __init__(self, body, *, params=None, edges=(), reports=()):
        walk = Walk(name="walk", partition="main", body=body, reports=reports)
        card = ModelCard(name="m", family="m", summary="", inputs=(), outputs=("tensor",), checkpoints=())
        config = ModelConfig(values=None, parameters=())
        spec = ModelSpec(
            card=card, config=config, nodes=NODES, walks=(walk,), edges=edges, inputs=(), machine=SimpleNamespace()
        )
        compiled = compile_model(spec)
        params = params or {}
        streams = [Stream(edge) for edge in edges]
        self.request = SimpleNamespace(
            params=params,
            slots={"main": [None] * compiled.slots["main"]},
            producing=streams.__getitem__,
            consuming=streams.__getitem__,
            count=lambda times: (
                2**62 if times is None else times if isinstance(times, int) else params[times.name] + times.offset
            ),
        )
        self.run = WalkRun(self.request, compiled.programs["walk"])
        self.ran, self.emitted, self.ends = [], [], []
        self._ready = deque()

    def make_ready(self, run, op):
        self._ready.append(op)

    def emit(self, run, modality, value):
        self.emitted.append(value)

    def walk_ended(self, run):
        self.ends.append(run.how)

    def walked(self):
        advance(self.run, 0, self)
        while self._ready:
            op = self._ready.popleft()
            inputs = {port: self.run.slots[slot] for port, slot in op.inputs}
            inputs |= {port: self.request.consuming(edge).take() for port, edge in op.takes}
            for _, edge in op.pushes:
                self.request.producing(edge).reserve()
            self.ran.append(op.node)
            task = Task(
                request=NodeRequest(1, {}, 0), walk="walk", inputs=inputs, step=len(self.ran), run=self.run, op=op
            )
            store(self.run, task, FUNCTIONS[op.node](**inputs))
            advance(self.run, op.next, self)
        return self


def test_steps_run_in_order_and_the_walk_ends_once():
    host = Host(Sequential(Run("add"), Run("double"), Emit("doubled", "tensor"))).walked()
    assert (host.ran, host.emitted, host.ends) == (["add", "double"], [2], ["done"])


@pytest.mark.parametrize("times", [1, 2, 49])
def test_a_loop_carries_its_signal_and_runs_exactly_so_often(times):
    host = Host(Sequential(Loop(Run("add"), times=times), Emit("value", "tensor"))).walked()
    assert (len(host.ran), host.emitted, host.ends) == (times, [times], ["done"])


def test_a_loop_gathers_every_value():
    host = Host(Sequential(Loop(Run("add"), times=4, gather=("value",)), Emit("value", "tensor"))).walked()
    assert host.emitted == [[1, 2, 3, 4]]


def test_a_loop_of_no_rounds_gathers_nothing_and_is_done():
    host = Host(Sequential(Loop(Run("add"), times=0, gather=("value",)), Emit("value", "tensor"))).walked()
    assert (host.ran, host.emitted, host.ends) == ([], [[]], ["done"])


def test_nested_loops_start_their_count_anew():
    inner = Loop(Run("double", inputs={"value": "value"}), times=3)
    host = Host(Loop(Sequential(Run("add"), inner), times=4)).walked()
    assert host.ran == ["add", "double", "double", "double"] * 4
    assert host.ends == ["done"]


def test_the_inner_bound_may_be_the_requests():
    host = Host(Loop(Loop(Run("add"), times=Param("rounds", offset=-1)), times=2), params={"rounds": 4}).walked()
    assert len(host.ran) == 6


def test_an_inner_loop_gathers_anew_in_every_round_of_the_outer_one():
    inner = Loop(Run("double"), times=2, gather=("doubled",))
    body = Loop(Sequential(Run("add"), inner, Emit("doubled", "tensor")), times=3)
    assert Host(body).walked().emitted == [[2, 2], [4, 4], [6, 6]]


@pytest.mark.parametrize(("at_most", "runs", "how"), [(2, 2, "at_most"), (3, 3, "until"), (9, 3, "until")])
def test_a_dynamic_loop_ends_by_its_signal_or_its_bound(at_most, runs, how):
    host = Host(DynamicLoop(Run("until3"), at_most=at_most, until="stop")).walked()
    assert (len(host.ran), host.ends) == (runs, [how])


def test_a_dynamic_loop_of_at_most_0_rounds_runs_nothing():
    body = DynamicLoop(Run("until3"), at_most=Param("most"), until="stop", gather=("value",))
    host = Host(Sequential(body, Emit("value", "tensor")), params={"most": 0}).walked()
    assert (host.ran, host.emitted, host.ends) == ([], [[]], ["at_most"])


def test_emits_in_a_loop_go_out_every_round():
    host = Host(DynamicLoop(Sequential(Run("until3"), Emit("value", "tensor")), at_most=9, until="stop")).walked()
    assert host.emitted == [1, 2, 3]


def test_parallel_branches_all_end_before_what_follows():
    branches = Parallel(Run("add"), Loop(Run("add", {"value": "other"}, {"value": "other"}), times=3))
    host = Host(Sequential(branches, Emit("value", "tensor"), Emit("other", "tensor"), Run("double"))).walked()
    assert sorted(host.ran[:4]) == ["add"] * 4
    assert (host.ran[4:], host.emitted, host.ends) == (["double"], [1, 3], ["done"])


def test_parallel_in_a_loop_forks_and_joins_every_round():
    branches = Parallel(Run("add"), Run("add", {"value": "other"}, {"value": "other"}))
    host = Host(Sequential(Loop(branches, times=5), Emit("value", "tensor"), Emit("other", "tensor"))).walked()
    assert (len(host.ran), host.emitted, host.ends) == (10, [5, 5], ["done"])


def test_a_loop_over_a_stream_ends_with_its_final_chunk():
    listening = DynamicLoop(Run("listen"), at_most=None, until=StreamEnd("listen", "heard"), gather=("value",))
    host = Host(Sequential(listening, Emit("value", "tensor")), edges=(EDGE,))
    for item in range(5):
        host.request.consuming(0).reserve()
        host.request.consuming(0).push(item)
    host.request.consuming(0).finish()
    host.walked()
    assert (host.emitted, host.ends) == ([[(0, 1), (2, 3), (4,)]], ["until"])


def test_a_run_fills_the_streams_of_its_outputs():
    host = Host(Loop(Sequential(Run("add"), Run("double")), times=4), edges=(EDGE,)).walked()
    assert [host.request.consuming(0).take().items for _ in range(2)] == [(2, 4), (6, 8)]


def test_reports_hold_the_flags_of_the_last_run():
    host = Host(DynamicLoop(Run("until3"), at_most=9, until="stop"), reports=("stop",)).walked()
    assert [host.run.slots[slot] for _, slot in host.run.program.reports] == [True]


def test_a_missing_output_is_named():
    with pytest.raises(NodeFailed, match="node 'silent' gave no output 'value' in walk 'walk'"):
        Host(Run("silent")).walked()
