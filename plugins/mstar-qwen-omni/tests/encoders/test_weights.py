import shutil

import pytest
from mstar_qwen_omni.encoders.nodes import AudioEncoder, VisionEncoder
from safetensors.torch import load_file, save_file

from mstar_core.errors import CheckpointError

NODES = [
    (AudioEncoder, "thinker.audio_tower.layers.0.fc1.weight", "thinker.audio_tower.layers.9.fc1.weight"),
    (VisionEncoder, "thinker.visual.merger_list.1.ln_q.bias", "thinker.visual.merger_list.7.ln_q.bias"),
]


@pytest.mark.parametrize(("node", "name", "other"), NODES)
def test_a_tensor_of_another_name_is_refused_with_both(node, name, other, fixture_dir, tmp_path, context):
    for file in fixture_dir.glob("*.json"):
        shutil.copyfile(file, tmp_path / file.name)
    tensors = load_file(fixture_dir / "model.safetensors")
    tensors[other] = tensors.pop(name)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as raised:
        node(context(tmp_path))
    assert f"{name} is missing" in str(raised.value)
    assert f"{other} is not part" in str(raised.value)
