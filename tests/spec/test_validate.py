from dataclasses import replace

import pytest

from mstar_core.errors import SpecError
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
    RequestInput,
    Run,
    Sequential,
    StreamEnd,
    StreamingEdge,
    Walk,
)
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig, ModelSpec
from mstar_core.spec.params import Parameter
from mstar_core.spec.validate import validate

CARD = ModelCard(
    name="toy",
    family="toy",
    summary="",
    inputs=("text",),
    outputs=("audio",),
    checkpoints=(Checkpoint(name="tiny", source="toy:tiny"),),
)


def node(name, inputs, outputs, **changes):
    declared = {"engine": "stateless", "factory": "toy:make", **changes}
    return Node(name=name, inputs=inputs, outputs=outputs, **declared)


READER = node("reader", (Port("prompt", "int64", ("n",)),), (Port("state", "float32", (4,)),))
WRITER = node(
    "writer",
    (Port("state", "float32", (4,)),),
    (Port("state", "float32", (4,)), Port("item", "int64", (), sparse=True), Port("stop", FLAG)),
)
SPEAKER = node("speaker", (Port("items", "int64", ()),), (Port("sound", "float32", ("n",), sparse=True),))
EDGE = StreamingEdge(source="writer.item", target="speaker.items", policy=FixedChunkPolicy(2))
READ = Walk(name="read", partition="writing", body=Run("reader"))
WRITE = Walk(name="write", partition="writing", body=DynamicLoop(Run("writer"), Param("rounds"), "stop"))
SPEAK = Walk(
    name="speak",
    partition="speaking",
    body=DynamicLoop(Sequential(Run("speaker"), Emit("sound", "audio")), None, StreamEnd("speaker", "items")),
)
SPEC = ModelSpec(
    card=CARD,
    config=ModelConfig(values=None, parameters=(Parameter(name="rounds", kind="int", default=3),)),
    nodes=(READER, WRITER, SPEAKER),
    walks=(READ, WRITE, SPEAK),
    edges=(EDGE,),
    inputs=(RequestInput(name="prompt", dtype="int64", shape=("n",)),),
    machine=None,
)


def problems(**changes):
    with pytest.raises(SpecError) as raised:
        validate(replace(SPEC, **changes), source="mstar-toy 1.0")
    return "\n".join(raised.value.problems)


def writing(body):
    return (READ, replace(WRITE, body=body), SPEAK)


def test_a_good_specification_passes():
    validate(SPEC)


def test_nested_loops_and_branches_pass():
    body = Loop(DynamicLoop(Run("writer"), 5, "stop"), times=2, gather=("state",))
    validate(replace(SPEC, walks=writing(body)))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (Run("writr"), "runs node 'writr', which does not exist (did you mean 'writer'?)"),
        (Run("writer", inputs={"stat": "x"}), "node 'writer' has no input port 'stat' (did you mean 'state'?)"),
        (Run("writer", inputs={"state": "nothing"}), "node 'writer', port 'state': signal 'nothing' comes from no"),
        (DynamicLoop(Run("writer"), Param("round"), "stop"), "counts by parameter 'round', which is not declared (did"),
        (DynamicLoop(Run("writer"), None, "stop"), "a DynamicLoop without at_most may run for ever"),
        (DynamicLoop(Run("writer"), 3, "state"), "a loop ends by 'state', which is float32, not a flag"),
        (
            DynamicLoop(Run("writer"), 3, "stopp"),
            "a loop ends by 'stopp', which its body does not produce (did you mean",
        ),
        (Loop(Run("writer"), 0), "a loop runs 0 times"),
        (Loop(Run("writer"), 2, gather=("stat",)), "a loop gathers 'stat', which its body does not produce"),
        (Parallel(Run("writer"), Run("writer")), "two branches of a Parallel produce signal 'state'"),
        (Sequential(Run("writer"), Emit("sond", "audio")), "emits 'sond', which nothing produces"),
        (Sequential(Run("writer"), Emit("state", "audo")), "emits modality 'audo' (did you mean 'audio'?)"),
        (Sequential(Run("writer"), Emit("state", "image")), "emits modality 'image', which the card does not list"),
        (Sequential(Run("writer"), Run("reader", inputs={"prompt": "state"})), "port 'prompt' expects int64"),
    ],
)
def test_a_walk_that_does_not_hold_together_is_named_with_its_place(body, problem):
    found = problems(walks=writing(body))
    assert problem in found
    assert "walk 'write'" in found
    assert "test_validate.py:" in found


@pytest.mark.parametrize(
    ("edge", "problem"),
    [
        (replace(EDGE, source="writer.itm"), "node 'writer' has no output port 'itm' (did you mean 'item'?)"),
        (replace(EDGE, target="speakr.items"), "target node 'speakr' does not exist (did you mean 'speaker'?)"),
        (replace(EDGE, capacity=1), "capacity 1 cannot hold the policy's longest chunk of 2 items"),
        (replace(EDGE, source="writer.state"), "port 'items' expects int64, port 'state' gives float32"),
    ],
)
def test_an_edge_that_does_not_fit_is_named(edge, problem):
    assert problem in problems(edges=(edge,))


def test_a_stream_within_one_partition_is_refused():
    found = problems(walks=(READ, WRITE, replace(SPEAK, partition="writing")))
    assert "both ends run in partition 'writing'" in found


def test_all_problems_are_reported_at_once():
    bad = replace(READER, engine="statless", factory="toy.make")
    found = problems(
        nodes=(bad, WRITER, SPEAKER, node("idle", (), ())),
        card=replace(CARD, checkpoints=(), outputs=("audoi", "audio")),
        inputs=(*SPEC.inputs, RequestInput(name="picture")),
    )
    for problem in (
        "no engine 'statless' (did you mean 'stateless'?)",
        "factory 'toy.make' is not of the form",
        "node 'idle' is in no walk",
        "no checkpoint named 'tiny'",
        "modality 'audoi' (did you mean 'audio'?)",
        "request input 'picture' is consumed by no walk",
    ):
        assert problem in found


def test_the_error_names_the_plugin():
    with pytest.raises(SpecError, match=r"model 'toy' of mstar-toy 1\.0"):
        validate(replace(SPEC, nodes=(READER, WRITER)), source="mstar-toy 1.0")
