import re
from pathlib import Path

import pytest

import mstar_core
from mstar_core import env
from mstar_core.errors import ConfigurationError


def test_variable_when_unset_or_blank_is_its_default():
    assert env.PLUGINS.get({}) is None
    assert env.PLUGINS.get({"MSTAR_PLUGINS": "  "}) is None


def test_variable_of_names_is_read_in_canonical_form():
    assert env.PLUGINS.get({"MSTAR_PLUGINS": "mstar_A, Mstar.B,"}) == {"mstar-a", "mstar-b"}


def test_variable_with_an_impossible_value_names_it_and_what_is_valid():
    with pytest.raises(ConfigurationError, match=r"MSTAR_PLUGINS='a;b': 'a;b' is not .* expected names of distrib"):
        env.PLUGINS.get({"MSTAR_PLUGINS": "a;b"})


def test_warnings_of_an_unknown_variable_give_the_nearest():
    environ = {"MSTAR_PLUGIN": "x", "MSTAR_PLUGINS": "x", "HOME": "/"}
    assert env.warnings(environ) == ("environment variable MSTAR_PLUGIN has no effect (did you mean 'MSTAR_PLUGINS'?)",)


def test_every_variable_that_the_source_names_is_in_the_table():
    source = "".join(path.read_text() for path in Path(mstar_core.__file__).parent.rglob("*.py"))
    assert set(re.findall(r"\bMSTAR_[A-Z_]+\b", source)) - {env.PREFIX} == {each.name for each in env.VARIABLES}
