import json
import shutil

import pytest
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.config.ids import vocabulary

from mstar_core.errors import CheckpointError

FILES = ("config.json", "tokenizer.json", "generation_config.json")


@pytest.fixture
def edited(golden_dir, tmp_path):
    """A copy of the checkpoint's small files, whose config.json was changed by a function of its values."""

    def editing(change):
        for name in FILES:
            shutil.copy(golden_dir / name, tmp_path / name)
        values = json.loads((tmp_path / "config.json").read_text())
        change(values)
        (tmp_path / "config.json").write_text(json.dumps(values))
        return tmp_path

    return editing


def test_the_recorded_configuration_is_read(golden_dir):
    config = QwenOmniConfig.read(golden_dir)
    assert config.thinker.sections == (6, 5, 5)
    assert config.talker.codec.speakers == {"aiden": 319, "chelsie": 317, "ethan": 318}
    assert config.talker.decoder.shared_width == 40
    assert (config.audio.chunk, config.audio.chunks_per_window) == (100, 2)
    assert config.vision.patch_values == 1536
    assert config.code2wav.samples_per_frame == 1920
    assert config.ids.stops == (302,)


def _speakerless(values):
    del values["talker_config"]["speaker_id"]


def _wrong_sections(values):
    values["thinker_config"]["text_config"]["rope_parameters"]["mrope_section"] = [6, 5, 4]


def _wide_ears(values):
    values["thinker_config"]["audio_config"]["output_dim"] = 65


def _dense(values):
    values["thinker_config"]["text_config"]["mlp_only_layers"] = [0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_speakerless, r"config\.json: the key 'speaker_id' is missing"),
        (_wrong_sections, r"config\.json: mrope_section \[6, 5, 4\]"),
        (_wide_ears, r"config\.json: audio_config\.output_dim is 65"),
        (_dense, r"config\.json: every layer must be a mixture"),
    ],
)
def test_what_is_missing_or_not_supported_is_named_with_its_file(edited, change, problem):
    directory = edited(change)
    with pytest.raises(CheckpointError, match=problem):
        QwenOmniConfig.read(directory)


def test_a_reply_ends_with_im_end_where_no_file_says_more(edited):
    directory = edited(lambda values: None)
    (directory / "generation_config.json").unlink()
    assert QwenOmniConfig.read(directory).ids.stops == (302,)
    (directory / "generation_config.json").write_text('{"eos_token_id": [302, 300]}')
    assert QwenOmniConfig.read(directory).ids.stops == (302, 300)


def test_both_spellings_of_the_configuration_are_one(golden_dir, tmp_path):
    for name in ("config_hub_style.json", "tokenizer.json", "generation_config.json"):
        target = "config.json" if name.startswith("config") else name
        shutil.copy(golden_dir / name, tmp_path / target)
    assert QwenOmniConfig.read(tmp_path) == QwenOmniConfig.read(golden_dir)


def test_words_are_found_in_the_files_of_the_published_tokenizer_too(golden_dir, tmp_path):
    words = vocabulary(golden_dir)
    added = {str(id): {"content": word} for word, id in words.items() if id >= 256}
    (tmp_path / "vocab.json").write_text(json.dumps({word: id for word, id in words.items() if id < 256}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    assert vocabulary(tmp_path) == words
