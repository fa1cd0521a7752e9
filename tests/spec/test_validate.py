from dataclasses import replace

import pytest

from mstar_core.errors import SpecError
from mstar_core.spec.chunks import FixedChunkPolicy
from mstar_core.spec.graph import (
    FLAG,
    DynamicLoop,
    Emit,
    Loop,
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
from mstar_core.spec.params import Parameter
from mstar_core.spec.validate import validate


def problems(spec, **options):
    """What `validate` finds."""
    try:
        validate(spec, **options)
    except SpecError as error:
        return error.problems
    return ()


def writing(toy, body, **changes):
    """The toy model with `body` as its walk `write`."""
    walk = Walk(name="write", partition="writing", body=body, **changes)
    return toy.model(walks=(toy.read, walk, toy.speak))


def test_a_sound_model_passes(toy):
    validate(toy.model())


def test_nested_loops_and_parallel_branches_that_fit_pass(toy):
    twin = toy.node("twin", (Port("item", "int64", ()),), (Port("shade", "float32"), Port("enough", FLAG)))
    body = Loop(
        Sequential(
            DynamicLoop(Run("writer"), at_most=4, until="stop"),
            Parallel(Run("writer"), Loop(Run("twin"), times=2, gather=("shade",))),
        ),
        times=Param("most", 1),
    )
    spec = writing(toy, body)
    validate(replace(spec, nodes=(*spec.nodes, twin)))


@pytest.mark.parametrize("shape", [(2,), None])
def test_progress_may_be_emitted_by_any_model(toy, shape):
    far = toy.node("far", (Port("item", "int64", ()),), (Port("progress", "int64", shape),))
    spec = writing(toy, Loop(Sequential(Run("far"), Emit("progress", "progress"), Run("writer")), times=Param("most")))
    validate(replace(spec, nodes=(*spec.nodes, far)))


def test_progress_of_another_shape_is_a_problem(toy):
    far = toy.node("far", (Port("item", "int64", ()),), (Port("progress", "int64", (3,)),))
    spec = writing(toy, Loop(Sequential(Run("far"), Emit("progress", "progress"), Run("writer")), times=Param("most")))
    assert "as progress" in problems(replace(spec, nodes=(*spec.nodes, far)))[0]


def test_every_problem_is_reported_at_once_with_the_models_name_and_source(toy):
    spec = toy.model(
        card=toy.card(outputs=("audio", "adio")),
        nodes=(replace(toy.reader, engine="stateles"), toy.writer, toy.speaker),
        walks=(toy.read, toy.write, replace(toy.speak, reports=("loud",))),
    )
    with pytest.raises(SpecError) as caught:
        validate(spec, source="plugin mstar-toy 1.0")
    assert str(caught.value).startswith("model 'toy' of plugin mstar-toy 1.0: 3 problems\n")
    assert len(caught.value.problems) == 3


BODIES = {
    "unknown node": (Run("writr"), "runs node 'writr', which does not exist (did you mean 'writer'?)"),
    "input port": (Run("writer", inputs={"itm": "item"}), "node 'writer' has no input port 'itm' (did you mean 'item'"),
    "output port": (Run("writer", outputs={"sond": "x"}), "has no output port 'sond' (did you mean 'sound'?)"),
    "signal": (
        Run("writer", inputs={"item": "itemm"}),
        "node 'writer', port 'item': signal 'itemm' comes from no earlier step, no walk of partition 'writing' and no "
        "request input (did you mean 'item'?)",
    ),
    "dtype": (Run("writer", inputs={"item": "stop"}), "port 'item' expects int64, port 'stop' gives flag"),
    "shape": (Run("writer", inputs={"item": "prompt"}), "port 'item' expects shape [], port 'prompt' gives [ids]"),
    "stream outside a loop": (Run("speaker"), "consumes a stream at port 'sound' outside a loop"),
    "gather": (Loop(Run("writer"), 2, gather=("sonud",)), "gathers 'sonud', which its body does not produce (did you"),
    "no rounds": (Loop(Run("writer"), 0), "a loop runs 0 times; at least 1 is needed"),
    "parameter": (
        Loop(Run("writer"), Param("mots")),
        "counts by parameter 'mots', which is not declared (did you mean",
    ),
    "endless": (DynamicLoop(Run("writer"), None, "stop"), "a DynamicLoop without at_most may run for ever"),
    "until nothing": (DynamicLoop(Run("writer"), 3, "stopp"), "ends by 'stopp', which its body does not produce (did"),
    "until no flag": (DynamicLoop(Run("writer"), 3, "sound"), "ends by 'sound', which is float32, not a flag"),
    "foreign stream": (
        DynamicLoop(Run("writer"), None, StreamEnd("speaker", "sound")),
        "ends with the stream into speaker.sound, which its body does not consume",
    ),
    "emit nothing": (Sequential(Run("writer"), Emit("sonud", "audio")), "emits 'sonud', which nothing produces (did"),
    "emit a flag": (Sequential(Run("writer"), Emit("stop", "audio")), "emits 'stop', which is a flag"),
    "emit no progress": (Sequential(Run("writer"), Emit("sound", "progress")), "as progress, which is int64 [2]"),
    "modality": (Sequential(Run("writer"), Emit("sound", "adio")), "emits modality 'adio' (did you mean 'audio'?)"),
    "unlisted": (Sequential(Run("writer"), Emit("sound", "text")), "'text', which the card does not list among its"),
    "rivals": (Parallel(Run("writer"), Run("writer")), "two branches of a Parallel produce signal 'item'"),
    "streams in branches": (
        Parallel(Run("writer"), Run("writer", outputs={"item": "x", "stop": "y"})),
        "two branches of a Parallel run node 'writer', which is the end of a stream",
    ),
    "branch order": (
        Parallel(Run("writer"), Run("reader", inputs={"prompt": "sound"}, outputs={"item": "x", "stop": "y"})),
        "node 'reader', port 'prompt': signal 'sound' comes from no earlier step",
    ),
}


@pytest.mark.parametrize(("body", "expected"), BODIES.values(), ids=BODIES)
def test_a_walk_that_does_not_fit_is_reported_with_its_place_and_name(toy, body, expected):
    spec = writing(toy, body)
    found = [problem for problem in problems(spec) if expected in problem]
    assert len(found) == 1, problems(spec)
    assert found[0].startswith(f"{__file__}:")
    assert "walk 'write': " in found[0]


def test_a_loop_counts_only_by_integers(toy):
    spec = toy.model(parameters=(Parameter(name="most", kind="float"),))
    assert any("counts by parameter 'most', which is float, not int" in each for each in problems(spec))


def test_a_sparse_signal_feeds_only_a_sparse_port(toy):
    reader = replace(toy.reader, outputs=(Port("item", "int64", (), sparse=True), Port("stop", FLAG)))
    writer = replace(toy.writer, outputs=(Port("sound", "float32"), Port("stop", FLAG)))
    found = problems(toy.model(nodes=(reader, writer, toy.speaker)))
    assert any("node 'writer', port 'item': signal 'item' is sparse, the port is not" in each for each in found)
    writer = replace(writer, inputs=(Port("item", "int64", (), sparse=True),))
    validate(toy.model(nodes=(reader, writer, toy.speaker)))


@pytest.mark.parametrize(
    ("reports", "expected"),
    [("stpo", "reports 'stpo', which no run of it produces (did you mean 'stop'?)"), ("item", "which is no flag")],
)
def test_a_walk_reports_only_flags_that_it_makes(toy, reports, expected):
    spec = toy.model(walks=(replace(toy.read, reports=(reports,)), toy.write, toy.speak))
    assert any(expected in problem for problem in problems(spec))


EDGES = {
    "source node": ({"source": "writr.sound"}, "source node 'writr' does not exist (did you mean 'writer'?)"),
    "target node": ({"target": "speakr.sound"}, "target node 'speakr' does not exist (did you mean 'speaker'?)"),
    "source port": ({"source": "writer.sond"}, "node 'writer' has no output port 'sond' (did you mean 'sound'?)"),
    "target port": ({"target": "speaker.sond"}, "node 'speaker' has no input port 'sond' (did you mean 'sound'?)"),
    "dtype": ({"source": "writer.item"}, "port 'sound' expects float32, port 'item' gives int64"),
    "flag": ({"source": "writer.stop"}, "a flag cannot be streamed"),
    "one partition": ({"target": "reader.prompt"}, "both ends run in partition 'writing'; a stream joins two"),
    "capacity": (
        {"policy": FixedChunkPolicy(5), "capacity": 4},
        "capacity 4 cannot hold the policy's longest chunk of 5 items",
    ),
}


@pytest.mark.parametrize(("changes", "expected"), EDGES.values(), ids=EDGES)
def test_an_edge_that_does_not_fit_is_reported_with_its_place_and_ends(toy, changes, expected):
    edge = StreamingEdge(
        **{"source": "writer.sound", "target": "speaker.sound", "policy": FixedChunkPolicy(2)} | changes
    )
    found = [problem for problem in problems(toy.model(edges=(edge,))) if expected in problem]
    assert len(found) == 1
    assert found[0].startswith(f"{__file__}:")
    assert f"streaming edge {edge.source} -> {edge.target}: " in found[0]


def test_a_stream_consumed_in_two_partitions_or_by_two_edges_is_reported(toy):
    other = replace(toy.speak, name="shout", partition="shouting")
    found = problems(toy.model(walks=(toy.read, toy.write, toy.speak, other), edges=(toy.edge, toy.edge)))
    assert any("node 'speaker' consumes the stream in several partitions: shouting, speaking" in each for each in found)
    assert "streaming edge into 'speaker.sound' is declared twice" in found


def test_a_stream_fed_in_two_partitions_is_reported(toy):
    other = replace(toy.write, name="scribble", partition="scribbling")
    found = problems(toy.model(walks=(toy.read, toy.write, toy.speak, other)))
    assert any("node 'writer' feeds the stream in several partitions: scribbling, writing" in each for each in found)


def test_a_card_without_tiny_or_with_wrong_words_is_reported(toy):
    found = problems(toy.model(card=toy.card(checkpoints=(), inputs=("txt",), routes=("v1/x",))))
    assert any("no checkpoint named 'tiny'" in each for each in found)
    assert any("modality 'txt' (did you mean 'text'?); known are text, audio, image, video, tensor" in f for f in found)
    assert "the card's route 'v1/x' does not begin with '/'" in found


def test_names_declared_twice_are_reported(toy):
    spec = toy.model(
        nodes=(toy.reader, toy.reader, toy.writer, toy.speaker),
        walks=(toy.read, toy.write, toy.write, toy.speak),
        inputs=(toy.prompt, toy.prompt),
        parameters=(toy.most, toy.most),
    )
    expected = [f"{kind} is declared twice" for kind in ("node 'reader'", "walk 'write'", "parameter 'most'")]
    assert {*expected, "request input 'prompt' is declared twice"} <= set(problems(spec))


def test_names_that_are_no_identifiers_are_reported_with_their_place(toy):
    odd = replace(toy.read, name="read it")
    assert any("walk 'read it': a name is letters, digits" in each for each in problems(toy.model(walks=(odd,))))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"engine": "stateles"}, "no engine 'stateles' (did you mean 'stateless'?); there are kv_cache, stateless"),
        ({"factory": "toy.nodes"}, "factory 'toy.nodes' is not of the form 'package.module:attribute'"),
        ({"outputs": (Port("item"), Port("item"))}, "output port 'item' is declared twice"),
    ],
)
def test_a_node_that_cannot_be_is_reported_with_its_place(toy, changes, expected):
    odd = replace(toy.node("odd", (), ()), **changes)
    found = [each for each in problems(toy.model(nodes=(toy.reader, toy.writer, toy.speaker, odd))) if expected in each]
    assert len(found) == 1
    assert "conftest.py:" in found[0]
    assert "node 'odd'" in found[0]


def test_an_input_of_several_shapes_fits_the_ports_of_each(toy):
    write = replace(toy.write, body=Run("writer", inputs={"item": "prompt"}))
    walks = (toy.read, write, toy.speak)
    for alternatives, fits in [((), False), (((),), True)]:
        spec = toy.model(walks=walks, inputs=(replace(toy.prompt, alternatives=alternatives),))
        assert any("port 'prompt' gives [ids]" in each for each in problems(spec)) is not fits


def test_an_engine_that_a_plugin_brings_is_known(toy):
    spec = toy.model(nodes=(replace(toy.reader, engine="own"), toy.writer, toy.speaker))
    assert problems(spec, engines=frozenset({"stateless", "own"})) == ()


def test_nodes_in_no_walk_and_inputs_that_nothing_consumes_are_reported(toy):
    idle = toy.node("idle", (), ())
    spec = toy.model(
        nodes=(toy.reader, toy.writer, toy.speaker, idle), inputs=(toy.prompt, RequestInput(name="promptt"))
    )
    found = problems(spec)
    assert any("node 'idle' is in no walk" in each for each in found)
    assert "request input 'promptt' is consumed by no walk (did you mean 'prompt'?)" in found
