from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mstar_core.spec.graph import DynamicLoop, Emit, Loop, Node, Parallel, Run, Sequential, Walk, runs
from mstar_core.spec.layout import layout_of
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig, ModelSpec
from mstar_core.spec.placement import Placement, check_placement

WORKERS = ("first", "second", "third")


def model(walks, name="toy"):
    """A model of walks as (name, partition, body); its nodes are those that the walks run."""
    walks = tuple(Walk(name=walk, partition=partition, body=body) for walk, partition, body in walks)
    names = dict.fromkeys(run.node for walk in walks for run in runs(walk.body))
    nodes = tuple(Node(name=node, engine="stateless", inputs=(), outputs=(), factory="toy:build") for node in names)
    tiny = Checkpoint(name="tiny", source="toy:tiny")
    return ModelSpec(
        card=ModelCard(name=name, family="toy", summary="", inputs=(), outputs=(), checkpoints=(tiny,)),
        config=ModelConfig(values=None, parameters=()),
        nodes=nodes,
        walks=walks,
        edges=(),
        inputs=(),
        machine=None,
    )


def placed(groups, *specs):
    """A placement of these groups that `check_placement` accepts for the models."""
    placement = Placement.model_validate({"workers": {name: {} for name in WORKERS}, "groups": groups})
    check_placement(placement, specs)
    return placement


def on(layout, node, walk):
    """The workers that run a node in a walk."""
    return layout.groups[layout.group_of[node, walk]].workers


def home(layout, partition):
    return layout.groups[layout.home_of[partition]].workers


SPEECH = model(
    [
        ("prefill", "speech", Run("lm")),
        ("decode", "speech", DynamicLoop(Sequential(Run("lm"), Run("judge")), at_most=8, until="stop")),
        ("vocode", "sound", Sequential(Run("codec"), Emit("audio", "audio"))),
    ]
)


def test_nodes_that_no_group_names_are_on_the_first_worker_with_the_defaults():
    layout = layout_of(SPEECH, placed([{"nodes": ["codec"], "worker": "second", "kv": {"page": 4}}], SPEECH))
    assert on(layout, "lm", "prefill") == on(layout, "judge", "decode") == ("first",)
    assert layout.nodes_on("second").keys() == {"codec"}
    assert layout.nodes_on("first")["lm"].kv.page == 16


def test_a_group_that_names_no_worker_is_on_the_first():
    layout = layout_of(SPEECH, placed([{"nodes": ["lm"], "kv": {"page": 4}}], SPEECH))
    assert layout.nodes_on("first")["lm"].kv.page == 4
    assert layout.workers() == ("first",)


def test_a_node_in_groups_with_different_walks_runs_each_where_its_group_says():
    groups = [
        {"nodes": ["lm"], "walks": ["prefill"], "worker": "second"},
        {"nodes": ["lm"], "walks": ["decode"], "worker": ["first", "third"]},
    ]
    layout = layout_of(SPEECH, placed(groups, SPEECH))
    assert on(layout, "lm", "prefill") == ("second",)
    assert on(layout, "lm", "decode") == ("first", "third")
    assert all("lm" in layout.nodes_on(worker) for worker in WORKERS)
    assert home(layout, "speech") == ("first", "third")


def test_replicas_are_the_candidates_of_one_group():
    layout = layout_of(SPEECH, placed([{"nodes": ["lm", "judge", "codec"], "worker": list(WORKERS)}], SPEECH))
    assert len(layout.groups) == 1
    assert layout.workers() == home(layout, "speech") == home(layout, "sound") == WORKERS


def test_workers_that_a_model_does_not_need_are_not_its_workers():
    layout = layout_of(SPEECH, placed([{"nodes": ["lm", "judge", "codec"], "worker": "third"}], SPEECH))
    assert layout.workers() == ("third",)
    assert layout.nodes_on("first") == {}


def test_each_model_has_its_own_groups():
    other = model([("vocode", "sound", Run("codec"))], name="other")
    groups = [
        {"nodes": ["codec"], "model": "toy", "worker": "second"},
        {"nodes": ["codec"], "model": "other", "worker": "third"},
    ]
    placement = placed(groups, SPEECH, other)
    assert on(layout_of(SPEECH, placement), "codec", "vocode") == ("second",)
    assert on(layout_of(other, placement), "codec", "vocode") == ("third",)
    assert layout_of(other, placement).workers() == ("third",)


def home_of(*bodies):
    """Where a partition of these bodies is at home, when `b` is apart."""
    spec = model([(f"walk{index}", "main", body) for index, body in enumerate(bodies)])
    return home(layout_of(spec, placed([{"nodes": ["b"], "worker": "second"}], spec)), "main")[0]


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ([Run("a"), Loop(Run("b"), times=2)], "second"),
        ([Loop(Run("a"), times=2), Run("b"), Run("b")], "first"),
        ([Loop(Sequential(Run("a"), Loop(Run("b"), times=2)), times=2)], "second"),
        ([Loop(Parallel(Run("a"), Run("b"), Run("b")), times=2)], "second"),
        ([Loop(Run("a"), times=2), Loop(Run("c"), times=2), Loop(Run("b"), times=2)], "first"),
        ([Loop(Run("b"), times=2)], "second"),
    ],
    ids=["the loop", "a loop outweighs runs", "the inner loop", "most runs", "one worker's groups add up", "alone"],
)
def test_a_partition_is_at_home_where_its_innermost_loops_run(bodies, expected):
    assert home_of(*bodies) == expected


def test_of_equals_the_earlier_group_is_the_home():
    groups = [{"nodes": ["b"], "worker": "third"}, {"nodes": ["a"], "worker": "second"}]
    spec = model([("walk", "main", Sequential(Run("a"), Run("b")))])
    assert home(layout_of(spec, placed(groups, spec)), "main") == ("third",)


NAMES = st.sampled_from("abcde")
BODIES = st.recursive(
    NAMES.map(Run),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda each: Sequential(*each)),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: Parallel(*each)),
        inner.map(lambda body: Sequential(Loop(body, times=2), Emit("x", "tensor"))),
        inner.map(lambda body: DynamicLoop(body, at_most=2, until="stop")),
    ),
    max_leaves=6,
)
MODELS = st.lists(st.tuples(st.sampled_from("pq"), BODIES), min_size=1, max_size=5).map(
    lambda walks: model([(f"walk{index}", partition, body) for index, (partition, body) in enumerate(walks)])
)
PLACES = [list(some) for count in (1, 2, 3) for some in combinations(WORKERS, count)]


@st.composite
def placements(draw, spec):
    """Every node in no group, in one, together with others, or split by its walks."""
    groups, together = [], {}
    for node in spec.nodes:
        walks = [walk.name for walk in spec.walks if any(run.node == node.name for run in runs(walk.body))]
        partitions = {spec.walk(walk).partition for walk in walks}
        ways = ["none", "alone", "together", *["split"] * (len(walks) > 1 and len(partitions) == 1)]
        match draw(st.sampled_from(ways)):
            case "alone":
                groups.append({"nodes": [node.name], "worker": draw(st.sampled_from(PLACES))})
            case "together":
                together.setdefault(tuple(draw(st.sampled_from(PLACES))), []).append(node.name)
            case "split":
                cut = draw(st.integers(1, len(walks) - 1))
                places = draw(st.permutations(WORKERS))
                groups.append({"nodes": [node.name], "walks": walks[:cut], "worker": places[0]})
                groups.append({"nodes": [node.name], "walks": walks[cut:], "worker": places[1:]})
    groups += [{"nodes": nodes, "worker": list(place)} for place, nodes in together.items()]
    return placed(draw(st.permutations(groups)), spec)


def weights(spec, layout, partition):
    """How much of a partition each set of workers runs, a loop's body a hundredfold."""
    found = Counter()

    def weigh(element, walk, weight):
        match element:
            case Run():
                found[on(layout, element.node, walk)] += weight
            case Sequential(parts) | Parallel(parts):
                for part in parts:
                    weigh(part, walk, weight)
            case Loop() | DynamicLoop():
                weigh(element.body, walk, 100 * weight)

    for walk in spec.walks:
        if walk.partition == partition:
            weigh(walk.body, walk.name, 1)
    return found


@given(st.data())
def test_every_run_has_exactly_one_group_and_every_partition_the_home_of_most_of_its_runs(data):
    spec = data.draw(MODELS)
    placement = data.draw(placements(spec))
    layout = layout_of(spec, placement)
    assert layout.group_of.keys() == {(run.node, walk.name) for walk in spec.walks for run in runs(walk.body)}
    for (node, walk), group in layout.group_of.items():
        fitting = [
            index
            for index, each in enumerate(layout.groups)
            if node in each.nodes and (walk in each.walks or not each.walks)
        ]
        assert fitting == [group]
    named = {node for group in placement.groups for node in group.nodes}
    assert all(on(layout, node, walk) == ("first",) for node, walk in layout.group_of if node not in named)
    assert layout.home_of.keys() == set(spec.partitions)
    for partition in spec.partitions:
        shares = weights(spec, layout, partition)
        assert shares[home(layout, partition)] == max(shares.values())
    assert layout == layout_of(spec, Placement.model_validate_json(placement.model_dump_json()))


@given(st.data())
def test_a_worker_has_the_nodes_that_it_may_have_to_run_with_their_groups_settings(data):
    spec = data.draw(MODELS)
    layout = layout_of(spec, data.draw(placements(spec)))
    for worker in WORKERS:
        expected = {node for node, walk in layout.group_of if worker in on(layout, node, walk)}
        assert layout.nodes_on(worker).keys() == expected
        assert (worker in layout.workers()) == bool(expected)
        for node, settings in layout.nodes_on(worker).items():
            assert node in settings.nodes
            assert worker in (settings.workers or ("first",))
