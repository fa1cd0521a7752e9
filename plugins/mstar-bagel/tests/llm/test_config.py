import json
import shutil

import pytest
from mstar_bagel.config import BagelConfig, Limits, SpecialIds

from mstar_core.errors import CheckpointError

PUBLISHED_LLM = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": 32768,
    "bos_token_id": 151643,
    "tie_word_embeddings": True,
}
PUBLISHED_VIT = {
    "hidden_size": 1152,
    "image_size": 980,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
}
NAMES = {"<|im_start|>": 151644, "<|im_end|>": 151645, "<|vision_start|>": 151652, "<|vision_end|>": 151653}


@pytest.fixture
def published(tmp_path):
    """The JSON files of the published checkpoint, as far as they matter."""
    files = {
        "config.json": {"model_type": "bagel", "max_latent_size": 32, "vae_config": {"z_channels": 16}},
        "llm_config.json": PUBLISHED_LLM,
        "vit_config.json": PUBLISHED_VIT,
        "tokenizer.json": {"added_tokens": [{"content": name, "id": id} for name, id in NAMES.items()]},
    }
    for name, values in files.items():
        (tmp_path / name).write_text(json.dumps(values))
    return tmp_path


def test_the_published_checkpoint_is_what_the_references_code_makes_of_it(published):
    config = BagelConfig.read(published)
    assert (config.llm.head_dim, config.vit.layers, config.vit.side, config.vit.head_dim) == (128, 26, 70, 72)
    assert (config.vae.width, config.vae.widths, config.vae.blocks, config.vae.downsample) == (128, (1, 2, 4, 4), 2, 8)
    assert (config.latent_side, config.latent_width, config.pixels_per_token, config.longest_side) == (64, 64, 16, 1024)
    assert config.transforms.vae == Limits(longest=1024, shortest=512, stride=16, max_pixels=1806336)
    assert config.transforms.vit == Limits(longest=980, shortest=224, stride=14, max_pixels=1806336)
    assert config.ids == SpecialIds(bos=151644, eos=151645, start_of_image=151652, end_of_image=151653)
    assert config.dtype == "bfloat16"


def test_a_recorded_set_states_its_sizes_and_ids(fixture_dir):
    config = BagelConfig.read(fixture_dir)
    assert (config.llm.head_dim, config.vit.layers, config.vit.side, config.latent_side) == (32, 2, 8, 8)
    assert (config.vae.width, config.longest_side, config.dtype) == (32, 64, "float32")
    assert config.ids == SpecialIds(bos=500, eos=501, start_of_image=502, end_of_image=503)


@pytest.mark.parametrize(
    ("file", "key"),
    [("llm_config.json", "rope_theta"), ("vit_config.json", "patch_size"), ("tokenizer.json", "added_tokens")],
)
def test_a_missing_key_is_named_with_its_file(published, file, key):
    values = json.loads((published / file).read_text())
    del values[key]
    (published / file).write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=rf"{file}: the key '{key}' is missing"):
        BagelConfig.read(published)


def test_a_tokenizer_without_the_markers_is_refused(published):
    (published / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"content": "<|im_start|>", "id": 1}]}))
    with pytest.raises(CheckpointError, match=r"no <\|im_end\|>, no <\|vision_start\|>"):
        BagelConfig.read(published)


def test_a_missing_file_and_what_is_no_json_are_named(published, fixture_dir, tmp_path_factory):
    (published / "vit_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"vit_config\.json: cannot be read as JSON"):
        BagelConfig.read(published)
    copy = tmp_path_factory.mktemp("copy")
    for path in fixture_dir.glob("*.json"):
        shutil.copyfile(path, copy / path.name)
    (copy / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read as JSON"):
        BagelConfig.read(copy)
