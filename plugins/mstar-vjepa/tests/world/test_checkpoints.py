import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mstar_vjepa.world.config import PUBLISHED, WorldConfig
from mstar_vjepa.world.encoder import FrameEncoder
from mstar_vjepa.world.predictor import load_predictor

from mstar_core.errors import CheckpointError
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.spec.explore import explore
from mstar_core.spec.machine import InputShape, RequestView
from mstar_core.spec.placement import check_placement, load_placement
from mstar_core.spec.trace import trace

PLACEMENTS = Path(__file__).parents[2] / "placements"
WRAPPED = "module.backbone."


@pytest.fixture
def copy(tmp_path, registry):
    """A copy of the bundled checkpoint that a test may break."""
    return shutil.copytree(locate(registry.card("vjepa2-ac")), tmp_path / "copy")


def rewrite(directory, change):
    (path,) = directory.glob("*.pt")
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)


def test_names_with_the_wrappers_of_any_training_are_read(copy, context):
    plain = FrameEncoder(context(copy)).model.norm.weight

    def wrap(content):
        tensors = {WRAPPED + name.removeprefix("module."): each for name, each in content.pop("encoder").items()}
        content["target_encoder"] = tensors | {WRAPPED + "pos_embed": torch.zeros(1, 4, 48)}

    rewrite(copy, wrap)
    assert torch.equal(FrameEncoder(context(copy)).model.norm.weight, plain)


def test_missing_wrong_and_unknown_tensors_are_listed_together(copy, context):
    def spoil(content):
        tensors = content["predictor"]
        del tensors["module.predictor_norm.bias"]
        tensors["module.action_encoder.weight"] = torch.zeros(48, 6)
        tensors["module.extra"] = torch.zeros(1)

    rewrite(copy, spoil)
    with pytest.raises(CheckpointError) as caught:
        load_predictor(context(copy))
    for problem in (
        "predictor_norm.bias is missing",
        "action_encoder.weight [48, 6]: the model needs [48, 7]",
        "extra is not part of the model",
    ):
        assert problem in str(caught.value)


def test_a_file_without_a_predictor_is_reported_with_what_it_has(copy, context):
    rewrite(copy, lambda content: content.pop("predictor"))
    with pytest.raises(CheckpointError, match=r"no dictionary 'predictor' in it \(found: encoder, opt"):
        load_predictor(context(copy))


def test_a_directory_without_a_file_of_weights_is_reported(copy, context):
    (copy / "vjepa2-ac-tiny.pt").unlink()
    with pytest.raises(CheckpointError, match=r"one \.pt file .*found: config\.json"):
        FrameEncoder(context(copy))


def test_a_directory_without_a_config_is_of_the_published_size(copy):
    (copy / "config.json").unlink()
    assert WorldConfig.read(copy) == PUBLISHED
    assert PUBLISHED.slot == 258


@pytest.mark.parametrize(
    ("part", "values", "problem"),
    [
        ("encoder", {"img_width": 50}, "no whole patches"),
        ("encoder", {"in_chans": 4}, "in_chans is 4"),
        ("predictor", {"action_embed_dim": 6}, "7 numbers each"),
        ("predictor", {"num_heads": 5}, "5 heads share 48"),
    ],
)
def test_a_config_that_does_not_fit_is_reported_with_its_file(copy, part, values, problem):
    config = json.loads((copy / "config.json").read_text())
    config[part] |= values
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{problem}"):
        WorldConfig.read(copy)


@pytest.mark.parametrize("model", ["vjepa2", "vjepa2-ac"])
def test_the_model_checks_as_sound(registry, model):
    assert explore(assemble(registry, model, locate(registry.card(model)))) == []


@pytest.mark.parametrize("model", ["vjepa2", "vjepa2-ac"])
def test_the_bundled_checkpoint_is_small(registry, model):
    files = locate(registry.card(model)).rglob("*")
    assert sum(path.stat().st_size for path in files) < 2_000_000


def test_a_trace_shows_a_plans_loops(registry):
    spec = assemble(registry, "vjepa2-ac", locate(registry.card("vjepa2-ac")))
    params = {each.name: each.default for each in spec.config.parameters} | {"horizon": 3, "refinements": 4}
    shapes = {"frames": (1, 36, 48), "goal_frames": (1, 36, 48), "pose": (7,)}
    inputs = {name: (InputShape("float32", shape),) for name, shape in shapes.items()}
    traced = trace(spec, RequestView(params=params, inputs=inputs, outputs=frozenset({"tensor"})))
    assert [walk.walk for walk in traced.walks] == ["see", "see_goal", "plan"]
    assert [loop.at_most for loop in traced.walks[-1].loops] == [4, 3]


def test_declaring_the_models_loads_neither_torch_nor_numpy():
    code = """
import sys
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.testing.plugins import registry_with
from mstar_vjepa import plugin
registry = registry_with(plugin)
for model in ("vjepa2", "vjepa2-ac"):
    assemble(registry, model, locate(registry.card(model)))
assert not {"torch", "numpy"} & sys.modules.keys(), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", sorted(PLACEMENTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_placements_that_ship_fit_the_model(registry, path):
    check_placement(load_placement(path), [assemble(registry, "vjepa2-ac", locate(registry.card("vjepa2-ac")))])
