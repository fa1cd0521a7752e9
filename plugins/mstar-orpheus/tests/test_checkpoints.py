import json
import os
import shutil
import subprocess
import sys

import pytest
from mstar_orpheus.config import CODEC_HUB_ID, OrpheusConfig, codec_directory
from mstar_orpheus.parameters import parameters

from mstar_core.errors import CheckpointError
from mstar_core.plugins.assemble import assemble, locate


@pytest.fixture
def copy(tmp_path, fixture_dir):
    """A copy of the recorded checkpoint that a test may break."""
    return shutil.copytree(fixture_dir, tmp_path / "copy")


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_the_bundled_checkpoint_makes_a_valid_model(registry):
    spec = assemble(registry, "orpheus", locate(registry.card("orpheus")))
    assert [walk.name for walk in spec.walks] == ["prefill", "decode", "vocode"]
    assert spec.edges[0].policy.sizes == (3, 1, 2, 4, 8)
    assert spec.edges[0].policy.left == 5


def test_the_bundled_checkpoint_is_small(registry):
    files = locate(registry.card("orpheus")).rglob("*")
    assert sum(path.stat().st_size for path in files if path.is_file()) < 10_000_000


def test_a_directory_with_the_language_model_at_its_root_is_read_alike(tmp_path, fixture_dir):
    flat = shutil.copytree(fixture_dir / "llm", tmp_path / "flat")
    shutil.copytree(fixture_dir / "snac", flat / "snac")
    assert OrpheusConfig.read(flat) == OrpheusConfig.read(fixture_dir)


def test_special_ids_come_from_the_tokenizer(fixture_dir):
    recorded = json.loads((fixture_dir / "orpheus_tokens.json").read_text())["tiny"]
    config = OrpheusConfig.read(fixture_dir)
    assert config.ids.begin_of_text == recorded["begin_of_text"]
    assert config.ids.end_of_turn == recorded["eot_id"]
    for name in ("start_of_speech", "end_of_speech", "start_of_human", "end_of_human", "start_of_ai"):
        assert getattr(config.ids, name) == recorded[name]
    assert config.audio_ids == range(recorded["audio_base"], recorded["audio_base"] + 7 * 64)


def test_a_codec_that_is_in_no_place_is_reported_with_what_to_do(copy):
    shutil.rmtree(copy / "snac")
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(copy)}
    code = f"from pathlib import Path; from mstar_orpheus.config import OrpheusConfig as C; C.read(Path({str(copy)!r}))"
    done = subprocess.run([sys.executable, "-c", code], env=offline, capture_output=True, text=True, check=False)
    assert f"CheckpointError: {copy} has no snac/" in done.stderr
    assert f"pytorch_model.bin of {CODEC_HUB_ID} into {copy / 'snac'}" in done.stderr


def test_a_codec_in_the_checkpoint_needs_no_hub(copy):
    assert codec_directory(copy) == copy / "snac"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_reported_with_what_is_there(copy, name):
    (copy / "llm" / name).unlink()
    with pytest.raises(CheckpointError, match=rf"there is no {name}; .*found: .*model\.safetensors"):
        OrpheusConfig.read(copy)


def test_a_tokenizer_of_another_model_is_reported_with_what_it_lacks(copy):
    change(copy / "llm" / "tokenizer.json", added_tokens=[{"content": "<|begin_of_text|>", "id": 0}])
    with pytest.raises(CheckpointError, match="no <\\|eot_id\\|>, no <custom_token_0>"):
        OrpheusConfig.read(copy)


def test_custom_tokens_out_of_order_are_reported(copy):
    tokens = json.loads((copy / "llm" / "tokenizer.json").read_text())["added_tokens"]
    for token in tokens:
        token["id"] += token["content"] == "<custom_token_10>"
    change(copy / "llm" / "tokenizer.json", added_tokens=tokens)
    with pytest.raises(CheckpointError, match=r"<custom_token_10> has id 331; 330, by <custom_token_0>"):
        OrpheusConfig.read(copy)


def test_a_codec_with_more_codes_than_the_model_has_ids_is_reported(copy):
    change(copy / "snac" / "config.json", codebook_size=4096)
    with pytest.raises(CheckpointError, match="do not belong together"):
        OrpheusConfig.read(copy)


def test_a_codec_of_another_kind_is_a_checkpoint_error(copy):
    change(copy / "snac" / "config.json", attn_window_size=32)
    with pytest.raises(CheckpointError, match="attn_window_size"):
        OrpheusConfig.read(copy)


@pytest.mark.parametrize(("positions", "expected"), [(131072, 4096), (8192, 4096), (2048, 1024)])
def test_max_tokens_leaves_room_for_the_prompt(positions, expected):
    (most,) = [each for each in parameters(positions) if each.name == "max_tokens"]
    assert most.default == expected


def test_declaring_the_model_loads_neither_torch_nor_tokenizers():
    code = """
import sys
from pathlib import Path
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.testing.plugins import registry_with
from mstar_orpheus import plugin
registry = registry_with(plugin)
assemble(registry, "orpheus", locate(registry.card("orpheus")))
assert not {"torch", "tokenizers"} & sys.modules.keys(), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
