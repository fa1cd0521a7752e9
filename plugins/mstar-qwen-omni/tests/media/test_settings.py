import json

import pytest
from mstar_qwen_omni.media.settings import MediaSettings

from mstar_core.errors import CheckpointError


def test_both_spellings_of_the_bounds_are_the_same(fixture_dir):
    values = json.loads((fixture_dir / "preprocessor_config.json").read_text())
    sized = {name: value for name, value in values.items() if name not in ("min_pixels", "max_pixels")}
    sized["size"] = {"shortest_edge": values["min_pixels"], "longest_edge": values["max_pixels"]}
    assert MediaSettings.parse(sized) == MediaSettings.parse(values)


@pytest.mark.parametrize("lacking", ["hop_length", "patch_size", "image_mean", "max_pixels"])
def test_a_file_that_lacks_something_is_refused_by_its_name(fixture_dir, tmp_path, lacking):
    values = json.loads((fixture_dir / "preprocessor_config.json").read_text())
    del values[lacking]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=f"preprocessor_config.json.*{lacking}"):
        MediaSettings.read(tmp_path)


def test_a_directory_without_the_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json"):
        MediaSettings.read(tmp_path)
