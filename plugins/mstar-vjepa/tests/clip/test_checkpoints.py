import json
import shutil

import pytest
import torch
from mstar_vjepa.clip.classifier import Classifier
from mstar_vjepa.clip.config import ClipConfig
from mstar_vjepa.clip.encoder import ClipEncoder
from safetensors.torch import load_file, save_file

from mstar_core.errors import CheckpointError


@pytest.fixture
def copy(tmp_path, fixture_dir):
    """A copy of the recorded classifier that a test may break."""
    return shutil.copytree(fixture_dir / "hf-tiny/cls", tmp_path / "copy")


def change(directory, **values):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_missing_wrong_and_unknown_tensors_are_listed_together(copy, context):
    tensors = load_file(copy / "model.safetensors")
    del tensors["vjepa2.encoder.layer.1.norm1.bias"]
    tensors["vjepa2.encoder.layer.0.mlp.fc1.weight"] = torch.zeros(3, 64)
    tensors["vjepa2.encoder.extra"] = torch.zeros(1)
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        ClipEncoder(context(copy))
    for problem in (
        "encoder.layer.1.norm1.bias is missing",
        r"encoder.layer.0.mlp.fc1.weight [3, 64]: the model needs [256, 64]",
        "vjepa2.encoder.extra is not part of the model",
    ):
        assert problem in str(caught.value)


def test_a_tensor_that_the_classifier_lacks_is_named(copy, context):
    tensors = load_file(copy / "model.safetensors")
    del tensors["pooler.query_tokens"]
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"pooler\.query_tokens is missing"):
        Classifier(context(copy))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"model_type": "vit"}, "model_type is 'vit', not 'vjepa2'"),
        ({"crop_size": 50}, "no whole patches of 16"),
        ({"crop_size": 64}, "crops to 48 pixels, the model's positions are for 64"),
        ({"num_attention_heads": 16}, "16 heads share 64 channels"),
        ({"hidden_act": "silu"}, "only gelu"),
    ],
)
def test_a_config_that_does_not_fit_is_reported_with_its_file(copy, values, problem):
    change(copy, **values)
    with pytest.raises(CheckpointError, match=rf"config.json: .*{problem}"):
        ClipConfig.read(copy)


def test_a_missing_key_is_named(copy):
    path = copy / "config.json"
    path.write_text(json.dumps({"model_type": "vjepa2"}))
    with pytest.raises(CheckpointError, match="the key 'crop_size' is missing"):
        ClipConfig.read(copy)


def test_the_published_giant_has_its_width(copy):
    change(copy, hidden_size=1408, num_attention_heads=22, mlp_ratio=48 / 11, crop_size=256)
    (copy / "video_preprocessor_config.json").unlink()
    config = ClipConfig.read(copy)
    assert config.encoder.mlp == 6144
    assert config.pictures.shortest == 292
