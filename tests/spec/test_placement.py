from textwrap import dedent

import pytest

from mstar_core.errors import PlacementError
from mstar_core.spec.graph import Run, Walk
from mstar_core.spec.layout import layout_of
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


def twice(toy):
    """The toy model, whose writer runs in a second walk, and whose speaker in a second partition."""
    again = Walk(name="again", partition="writing", body=Run("writer"))
    aloud = Walk(name="aloud", partition="aloud", body=Run("speaker"))
    model = toy.model()
    return toy.model(walks=(*model.walks, again, aloud))


def refusal(text):
    with pytest.raises(PlacementError) as caught:
        parse_placement(dedent(text), "place.yaml")
    return str(caught.value)


def test_a_whole_file_is_read(toy):
    placement = parse_placement(WHOLE, "place.yaml")
    check_placement(placement, [toy.model()])
    assert placement.workers["main"].threads == 2
    assert placement.model("toy").running == 8
    assert layout_of(toy.model(), placement).nodes_on("main")["writer"].kv.tokens == 1024
    assert not placement.run_ahead


def test_nodes_and_models_that_are_not_named_have_the_defaults(toy):
    placement = parse_placement(WHOLE, "place.yaml")
    assert layout_of(toy.model(), placement).nodes_on("main")["reader"].dtype == "auto"
    assert layout_of(toy.model(), placement).nodes_on("main")["reader"].compile == "auto"
    assert placement.model("other").checkpoint is None
    assert parse_placement("", "place.yaml") == Placement()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker: {}\n", "place.yaml:1: worker: unknown key; known are workers, models, groups, run_ahead, tra"),
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
        (
            "models: {toy: {omit: [wirter]}}",
            "models.toy.omit: model 'toy' has no node 'wirter' (did you mean",
        ),
        (
            "models: {toy: {omit: [writer]}}\ngroups: [{nodes: [writer]}]",
            "models.toy.omit: 'writer' is in a group, too",
        ),
        ("models: {toy: {omit: [reader, writer, speaker]}}", "models.toy.omit: no walk is left without reader, writer"),
        ("models: {tyo: {}}", "models.tyo: no such model is served (did you mean 'toy'?); served are toy"),
        ("groups: [{nodes: [writr]}]", "groups[0].nodes: model 'toy' has no node 'writr' (did you mean 'writer'?)"),
        ("groups: [{nodes: [writer], walks: [wrte]}]", "groups[0].walks: model 'toy' has no walk 'wrte' (did you mean"),
        ("groups: [{nodes: [writer], walks: [speak]}]", "groups[0].walks: walk 'speak' runs none of writer"),
        ("groups: [{nodes: [writer], worker: mian}]", "groups[0].worker: no worker 'mian' (did you mean 'main'?)"),
        ("groups: [{nodes: [writer]}, {nodes: [writer]}]", "groups[1].nodes: 'writer' is placed twice"),
        (
            "groups: [{nodes: [writer], walks: [write]}, {nodes: [writer], walks: [again], dtype: float16}]",
            "groups[1].kv.page, dtype: must be those of the other group with 'writer'",
        ),
        ("groups: [{nodes: [writer], walks: [write]}]", "groups[0].walks: 'writer' also runs in again, which no group"),
        (
            "groups: [{nodes: [speaker], walks: [speak]}, {nodes: [speaker], walks: [aloud]}]",
            "groups[0].nodes: 'speaker' runs in several partitions at the same time",
        ),
        ("groups: [{nodes: [writer], worker: [main, main]}]", "groups[0].worker: a worker is named twice"),
        (
            "groups: [{nodes: [writer], walks: [write], worker: main}, "
            "{nodes: [writer], walks: [again], worker: main}]",
            "groups[1].worker: 'writer' is in another group on main; put the walks together",
        ),
        ("groups: [{nodes: [writer], tp: 2}]", "groups[0].tp: tensor parallelism over 2 ranks is not available yet"),
        ("workers: {main: {host: rak}}", "workers.main.host: no host 'rak'"),
        ("hosts: {rack: {address: 'tcp://10.0.0.2:7700'}}", "hosts: they need an 'address' beside them"),
        ("groups: [{nodes: [writer], model: other}]", "groups[0].model: other; several models or others are served"),
    ],
)
def test_names_that_no_served_model_has_are_refused(toy, text, message):
    with pytest.raises(PlacementError) as caught:
        check_placement(parse_placement(f"\n{text}", "place.yaml"), [twice(toy)])
    assert str(caught.value).startswith(f"place.yaml:2: {message}")


def test_names_in_a_placement_that_was_read_from_no_file_are_refused_without_a_line(toy):
    with pytest.raises(PlacementError, match=r"^placement: models\.tyo: no such model"):
        check_placement(Placement.model_validate({"models": {"tyo": {}}}), [toy.model()])
