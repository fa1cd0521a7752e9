import sys

import pytest
from huggingface_hub import constants

from mstar_core.checkpoints import checkpoint_directory
from mstar_core.errors import CheckpointError
from mstar_core.plugins.assemble import locate
from mstar_core.spec.model import Checkpoint, ModelCard

SOURCES = {"tiny": "mstar_shipping:data/tiny", "full": "owner/full"}


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    (tmp_path / "mstar_shipping" / "data" / "tiny").mkdir(parents=True)
    (tmp_path / "mstar_shipping" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mstar_shipping", raising=False)
    yield tmp_path
    sys.modules.pop("mstar_shipping", None)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub's client, offline by its own switch, with an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def test_checkpoint_that_ships_in_a_package_is_found_in_it(shipped):
    directory = checkpoint_directory("tiny", model="toy", sources=SOURCES)
    assert directory == shipped / "mstar_shipping" / "data" / "tiny"


def test_checkpoint_in_a_package_that_is_absent_or_lacks_it_says_which(shipped):
    with pytest.raises(CheckpointError, match="ships in package 'mstar_nowhere', which is not installed"):
        checkpoint_directory("tiny", model="toy", sources={"tiny": "mstar_nowhere:tiny"})
    with pytest.raises(CheckpointError, match="mstar_shipping/big is not a directory; reinstall"):
        checkpoint_directory("big", model="toy", sources={"big": "mstar_shipping:big"})


def test_checkpoint_that_is_a_local_directory_is_that_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert checkpoint_directory("mine", model="toy", sources=SOURCES) == tmp_path / "mine"


def test_checkpoint_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="is a file; a directory is needed"):
        checkpoint_directory(str(tmp_path / "model.safetensors"), model="toy", sources=SOURCES)


def test_checkpoint_of_an_unknown_name_gives_the_nearest_and_the_valid_ones():
    with pytest.raises(CheckpointError, match=r"no checkpoint 'tinny' \(did you mean 'tiny'\?\).*valid: tiny, full, a"):
        checkpoint_directory("tinny", model="toy", sources=SOURCES)


def test_checkpoint_on_the_hub_when_offline_says_what_to_do(hub):
    with pytest.raises(CheckpointError, match=r"'owner/full' for model 'toy': it is not in the local cache.*go online"):
        checkpoint_directory("full", model="toy", sources=SOURCES)


def test_checkpoint_on_the_hub_that_is_cached_is_used_offline_with_its_revision(hub, tmp_path):
    repository = tmp_path / "cache" / "models--owner--full"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "v2").write_text("a" * 40)
    assert checkpoint_directory("owner/full@v2", model="toy", sources=SOURCES) == snapshot


def test_locate_without_a_name_takes_the_cards_first_checkpoint(shipped):
    tiny = Checkpoint(name="tiny", source=SOURCES["tiny"])
    card = ModelCard(name="toy", family="toy", summary="", inputs=(), outputs=(), checkpoints=(tiny,))
    assert locate(card) == shipped / "mstar_shipping" / "data" / "tiny"
