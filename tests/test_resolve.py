import json

import pytest

from mstar_core._resolve import resolve
from mstar_core.errors import PluginError


def test_resolve_of_an_attribute_gives_the_object():
    assert resolve("json:loads", purpose="p") is json.loads
    assert resolve("json.decoder:JSONDecoder.decode", purpose="p") is json.JSONDecoder.decode


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("json.loads", "p: 'json.loads' is not of the form 'package.module:attribute'"),
        ("json:", "is not of the form"),
        ("json:load_s", "json has no 'load_s' (did you mean 'loads'?)"),
        ("json.encodr:X", "there is no module 'json.encodr'"),
        ("nowhere.at.all:X", "there is no module 'nowhere'"),
    ],
)
def test_resolve_of_what_is_not_there_says_what_is_wrong(target, message):
    with pytest.raises(PluginError) as caught:
        resolve(target, purpose="p")
    assert message in str(caught.value)


def test_resolve_of_a_module_that_needs_an_absent_one_names_both(tmp_path, monkeypatch):
    (tmp_path / "mstar_needing.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match=r"no module 'nowhere_to_be_found' \(needed by mstar_needing\)"):
        resolve("mstar_needing:X", purpose="p")


def test_resolve_of_a_module_that_raises_names_the_error(tmp_path, monkeypatch):
    (tmp_path / "mstar_raising.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match="importing mstar_raising raised ZeroDivisionError"):
        resolve("mstar_raising:X", purpose="p")
