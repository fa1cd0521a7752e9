"""Optional nodes: left out of the walks where a placement does not name them."""

from dataclasses import replace

import pytest

from mstar_core.errors import SpecError
from mstar_core.spec.graph import DynamicLoop, Emit, Loop, Parallel, Port, Run, Sequential, Walk
from mstar_core.spec.layout import layout_of
from mstar_core.spec.placed import as_placed
from mstar_core.spec.placement import Placement
from mstar_core.spec.render import to_text
from mstar_core.spec.validate import validate

WORKERS = {"first": {}, "second": {}}


def with_helper(toy, body, **changes):
    """The toy model with an optional node and a walk of this body."""
    helper = toy.node("helper", (Port("item", "int64", ()),), (Port("hint", "float32", sparse=True),), optional=True)
    walk = Walk(name="write", partition="writing", body=body)
    spec = toy.model(walks=(toy.read, walk, toy.speak), **changes)
    return replace(spec, nodes=(*spec.nodes, helper))


def placement(*groups):
    return Placement.model_validate({"workers": WORKERS, "groups": groups})


def body_of(spec, *groups):
    return as_placed(spec, placement(*groups)).walk("write").body


WRITER = Run("writer")
LOOP = DynamicLoop(Sequential(Parallel(WRITER, Run("helper")), Emit("hint", "audio")), at_most=4, until="stop")


def test_a_model_without_optional_nodes_is_as_it_was(toy):
    assert as_placed(toy.model(), placement()) == toy.model()


def test_runs_of_a_node_without_a_place_are_left_out(toy):
    assert body_of(with_helper(toy, LOOP)) == DynamicLoop(
        Sequential(WRITER, Emit("hint", "audio")), at_most=4, until="stop"
    )


def test_what_holds_nothing_else_is_left_out_with_them(toy):
    nested = Sequential(WRITER, Parallel(Run("helper"), Sequential(Run("helper"))), Loop(Run("helper"), times=3))
    assert body_of(with_helper(toy, nested)) == Sequential(WRITER, Loop(Sequential(), times=3))
    assert body_of(with_helper(toy, Run("helper"))) == Sequential()


def test_a_group_gives_the_node_its_place(toy):
    spec = with_helper(toy, LOOP)
    for model in (None, "toy"):
        group = {"nodes": ["helper"], "worker": "second", "model": model}
        layout = layout_of(spec, placement(group))
        assert layout.spec == spec
        assert layout.groups[layout.group_of["helper", "write"]].workers == ("second",)
    assert body_of(spec, {"nodes": ["helper"], "worker": "second", "model": "another"}) != LOOP


def test_a_layout_knows_nothing_of_a_node_without_a_place(toy):
    layout = layout_of(with_helper(toy, LOOP), placement())
    assert "helper" not in {node for node, _ in layout.group_of} | set(layout.nodes_on("first"))


def test_the_outputs_of_an_optional_node_are_sparse_and_no_stream_ends_in_it(toy):
    spec = with_helper(toy, LOOP)
    validate(spec)
    nodes = [replace(node, optional=node.name == "writer") for node in spec.nodes]
    with pytest.raises(SpecError) as refused:
        validate(replace(spec, nodes=tuple(nodes)))
    problems = refused.value.problems
    assert any("output 'item' must be sparse, since the node is optional" in problem for problem in problems)
    assert any("the end of a stream cannot be optional" in problem for problem in problems)


def omitting(*nodes):
    return Placement.model_validate({"models": {"toy": {"omit": nodes}}})


def test_walks_and_streams_of_an_omitted_node_are_left_out_and_what_only_they_make(toy):
    emits = Walk(name="write", partition="writing", body=Sequential(toy.write.body, Emit("item", "text")))
    spec = toy.model(card=toy.card(outputs=("text", "audio")), walks=(toy.read, emits, toy.speak))
    left = as_placed(spec, omitting("speaker"))
    assert ([node.name for node in left.nodes], left.edges) == (["reader", "writer"], ())
    assert left.walks == (toy.read, emits)
    assert left.card.outputs == ("text",)
    assert as_placed(left, omitting("speaker")) == left


def test_nodes_of_which_no_walk_is_left_are_left_out_too(toy):
    assert [node.name for node in as_placed(toy.model(), omitting("writer")).nodes] == ["reader", "speaker"]


def test_a_graph_says_that_a_node_is_optional(toy):
    assert "helper   stateless, optional  item int64[] -> hint float32 sparse" in to_text(with_helper(toy, LOOP))
