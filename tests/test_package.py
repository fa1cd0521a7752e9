import tomllib
from pathlib import Path

import pytest

import mstar_core


def test_all_is_sorted_and_every_name_in_it_loads():
    assert mstar_core.__all__ == sorted(set(mstar_core.__all__))
    for name in mstar_core.__all__:
        assert getattr(mstar_core, name) is not None
        assert name in dir(mstar_core)


def test_version_is_the_distributions():
    pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    assert mstar_core.__version__ == pyproject["project"]["version"]


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Engin'"):
        mstar_core.Engin  # noqa: B018
