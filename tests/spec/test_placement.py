import pytest

from mstar_core.errors import PlacementError
from mstar_core.spec.graph import Node, Run, Sequential, Walk
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig, ModelSpec
from mstar_core.spec.placement import Placement, check_placement, parse_placement


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "workers:\n  main:\n    devcie: cpu\n",
            "p.yaml:3: workers.main.devcie: unknown key; known are device, threads (did",
        ),
        ("workers:\n  main: {device: gpu}\n", "p.yaml:2: workers.main.device: Value error, 'gpu' is no device"),
        (
            "models:\n  toy:\n    running: 0\n",
            "p.yaml:3: models.toy.running: Input should be greater than or equal to 1",
        ),
        ("groups:\n  - nodes: []\n", "p.yaml:2: groups.0.nodes"),
        ("grups: []\n", "grups: unknown key; known are workers, models, groups, run_ahead (did you mean 'groups'?)"),
        ("a: [\n", "p.yaml:2: this is no YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_key(text, problem):
    with pytest.raises(PlacementError) as raised:
        parse_placement(text, "p.yaml")
    assert problem in str(raised.value)


def test_an_empty_file_is_the_default_placement():
    assert parse_placement("", "p.yaml") == Placement()


def test_groups_decide_for_their_nodes():
    text = "groups:\n  - nodes: [lm]\n    dtype: bfloat16\n    kv: {tokens: 100, page: 4}\n"
    placement = parse_placement(text, "p.yaml")
    assert placement.group("toy", "lm").kv.tokens == 100
    assert placement.group("toy", "other").dtype == "auto"


def toy():
    nodes = tuple(
        Node(name=name, engine="stateless", inputs=(), outputs=(), factory="toy:make") for name in ("reader", "writer")
    )
    card = ModelCard(
        name="toy",
        family="toy",
        summary="",
        inputs=(),
        outputs=(),
        checkpoints=(Checkpoint(name="tiny", source="toy:tiny"),),
    )
    walk = Walk(name="write", partition="main", body=Sequential(Run("reader"), Run("writer")))
    config = ModelConfig(values=None, parameters=())
    return ModelSpec(card=card, config=config, nodes=nodes, walks=(walk,), edges=(), inputs=(), machine=None)


def test_names_are_checked_against_the_models():
    text = "models: {toi: {}}\ngroups:\n  - {nodes: [writr], worker: mian}\n  - {nodes: [reader], walks: [wrte]}\n"
    with pytest.raises(PlacementError) as raised:
        check_placement(parse_placement(text, "p.yaml"), [toy()], "p.yaml")
    for problem in (
        "models.toi: no such model",
        "no node 'writr' (did",
        "no worker 'mian' (did",
        "no walk 'wrte' (did",
    ):
        assert problem in str(raised.value)
