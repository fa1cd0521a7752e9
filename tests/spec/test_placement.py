from textwrap import dedent

import pytest

from mstar_core.errors import PlacementError
from mstar_core.spec.placement import Placement, check_placement, load_placement, parse_placement

WHOLE = """\
workers:
  main: {device: cpu, threads: 2}
models:
  toy: {checkpoint: tiny, weight: 2, running: 8, waiting: 16}
groups:
  - nodes: [writer]
    walks: [write]
    worker: main
    dtype: bfloat16
    kv: {tokens: 1024, page: 8}
    batch: {requests: 4, tokens: 64}
run_ahead: false
"""


def refusal(text):
    with pytest.raises(PlacementError) as caught:
        parse_placement(dedent(text), "place.yaml")
    return str(caught.value)


def test_a_whole_file_is_read(toy):
    placement = parse_placement(WHOLE, "place.yaml")
    check_placement(placement, [toy.model()])
    assert placement.workers["main"].threads == 2
    assert placement.model("toy").running == 8
    assert placement.group("toy", "writer").kv.tokens == 1024
    assert not placement.run_ahead


def test_nodes_and_models_that_are_not_named_have_the_defaults(toy):
    placement = parse_placement(WHOLE, "place.yaml")
    assert placement.group("toy", "reader").dtype == "auto"
    assert placement.worker("toy", "reader") == "main"
    assert placement.model("other").checkpoint is None
    assert parse_placement("", "place.yaml") == Placement()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker: {}\n", "place.yaml:1: worker: unknown key; known are workers, models, groups, run_ahead (did you"),
        (
            "workers:\n  main: {devise: cpu}\n",
            "place.yaml:2: workers.main.devise: unknown key; known are device, threa",
        ),
        ("workers:\n  main:\n    device: gpu\n", "place.yaml:3: workers.main.device: "),
        ("groups:\n- nodes: [a]\n  kv:\n    pages: 3\n", "place.yaml:4: groups.0.kv.pages: unknown key; known are tok"),
        ("groups:\n- nodes: [a]\n- nodes: []\n", "place.yaml:3: groups.1.nodes: "),
        ("groups:\n- dtype: auto\n", "place.yaml:2: groups.0.nodes: Field required"),
        ("models:\n  toy:\n    running: 0\n", "place.yaml:3: models.toy.running: "),
        ("models:\n  toy:\n    running: '8'\n", "place.yaml:3: models.toy.running: "),
        ("workers: {}\n", "place.yaml:1: workers: "),
        ("groups: [\n", "place.yaml:2: this is no YAML: "),
        ("- a\n", "place.yaml:1: file: "),
    ],
)
def test_a_mistake_is_refused_with_file_line_and_key(text, message):
    assert refusal(text).startswith(message)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("worker: {}\n", "'workers'"),
        ("workers:\n  main: {devise: cpu}\n", "'device'"),
        ("groups:\n- nodes: [a]\n  batch: {reqests: 1}\n", "'requests'"),
    ],
)
def test_an_unknown_key_comes_with_the_nearest(text, nearest):
    assert refusal(text).endswith(f"(did you mean {nearest}?)")


def test_every_mistake_of_a_file_is_reported():
    assert len(refusal("workers:\n  main: {devise: cpu, threads: -1}\nrun_ahed: true\n").splitlines()) == 3


def test_a_device_that_does_not_exist_is_refused_with_what_does():
    assert "'gpu' is no device; use auto, cpu, cuda or cuda:N" in refusal("workers:\n  main: {device: gpu}\n")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PlacementError, match=r"absent.yaml: cannot be read: No such file"):
        load_placement(tmp_path / "absent.yaml")


def test_yaml_that_constructs_objects_is_refused():
    assert "this is no YAML" in refusal("workers: !!python/object/apply:os.system ['true']\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: {tyo: {}}", "models.tyo: no such model is served (did you mean 'toy'?); served are toy"),
        ("groups: [{nodes: [writr]}]", "groups[0].nodes: model 'toy' has no node 'writr' (did you mean 'writer'?)"),
        ("groups: [{nodes: [writer], walks: [wrte]}]", "groups[0].walks: model 'toy' has no walk 'wrte' (did you mean"),
        ("groups: [{nodes: [writer], walks: [speak]}]", "groups[0].walks: walk 'speak' runs none of writer"),
        ("groups: [{nodes: [writer], worker: mian}]", "groups[0].worker: no worker 'mian' (did you mean 'main'?)"),
        ("groups: [{nodes: [writer]}, {nodes: [writer]}]", "groups[1].nodes: 'writer' is placed twice"),
        ("groups: [{nodes: [writer], model: other}]", "groups[0].model: other; several models or others are served"),
    ],
)
def test_names_that_no_served_model_has_are_refused(toy, text, message):
    with pytest.raises(PlacementError) as caught:
        check_placement(parse_placement(f"\n{text}", "place.yaml"), [toy.model()])
    assert str(caught.value).startswith(f"place.yaml:2: {message}")


def test_names_in_a_placement_that_was_read_from_no_file_are_refused_without_a_line(toy):
    with pytest.raises(PlacementError, match=r"^placement: models\.tyo: no such model"):
        check_placement(Placement.model_validate({"models": {"tyo": {}}}), [toy.model()])
