import sys

import pytest

from mstar_core.spec.model import Checkpoint, ModelCard


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory on the import path for fake distributions; what was imported from it is forgotten afterwards."""
    for name in ("MSTAR_PLUGINS", "MSTAR_BLOCK_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(directory)
    before = set(sys.modules)
    yield directory
    for name in set(sys.modules) - before:
        if str(directory) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def toy_card():
    """A card of a model `toy`."""
    return ModelCard(
        name="toy",
        family="toy",
        summary="",
        inputs=("text",),
        outputs=("text",),
        checkpoints=(Checkpoint(name="tiny", source="nowhere:tiny"),),
    )
