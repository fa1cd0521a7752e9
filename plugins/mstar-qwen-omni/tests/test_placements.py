from pathlib import Path

import pytest
from mstar_qwen_omni import plugin

from mstar_core.plugins.assemble import assemble, locate
from mstar_core.spec.placement import check_placement, load_placement
from mstar_core.testing.plugins import registry_with

FILES = sorted((Path(__file__).parents[1] / "placements").glob("*.yaml"))


def test_there_are_files():
    assert {file.stem for file in FILES} >= {"one-worker", "speech-apart", "text-only", "one-gpu"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_fits_the_model(file):
    registry = registry_with(plugin)
    spec = assemble(registry, "qwen-omni", locate(registry.card("qwen-omni"), None))
    check_placement(load_placement(file), [spec])
