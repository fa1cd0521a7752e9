import pytest

from mstar_core.cli import main
from mstar_core.cli.commands import COMMANDS
from mstar_core.cli.group import mstar
from mstar_core.errors import CheckpointError, ConfigurationError
from mstar_core.plugins.discovery import discover


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch):
    monkeypatch.setenv("MSTAR_PLUGINS", "mstar-none-at-all")


def test_help_lists_every_command_and_environment_variable(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name}" in shown for name in (*COMMANDS, "MSTAR_PLUGINS", "MSTAR_BLOCK_PLUGINS"))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_shows_an_example(capsys, name):
    assert main([name, "--help"]) == 0
    assert f"  mstar {name}" in capsys.readouterr().out


def test_commands_in_the_table_are_named_as_in_their_modules():
    with mstar.make_context("mstar", [], resilient_parsing=True) as context:
        assert all(mstar.get_command(context, name).name == name for name in COMMANDS)


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "mstar 0.1.0\n"


def test_an_unknown_command_exits_2_with_the_nearest(capsys):
    assert main(["list-modles"]) == 2
    assert "no command 'list-modles' (did you mean 'list-models'?)" in capsys.readouterr().err


def test_an_unknown_option_exits_2(capsys):
    assert main(["list-models", "--jsn"]) == 2
    assert "--jsn" in capsys.readouterr().err


def test_an_unknown_model_exits_1(capsys):
    assert main(["graph", "toy"]) == 1
    assert capsys.readouterr().err.startswith("error: unknown model 'toy'")


def test_an_impossible_environment_variable_exits_2_and_names_it(capsys, monkeypatch):
    monkeypatch.setenv("MSTAR_BLOCK_PLUGINS", "!")
    assert main(["list-models"]) == 2
    assert capsys.readouterr().err.startswith("error: MSTAR_BLOCK_PLUGINS='!'")


def test_an_unknown_environment_variable_is_warned_of(capsys, monkeypatch):
    monkeypatch.setenv("MSTAR_PLUGNS", "x")
    assert main(["list-models"]) == 0
    assert "warning: environment variable MSTAR_PLUGNS has no effect" in capsys.readouterr().err


def test_list_models_without_any_says_where_models_come_from(capsys):
    assert main(["list-models"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "install with pip" in captured.err


def test_check_without_plugins_exits_0_and_of_an_unknown_model_exits_1(capsys, monkeypatch):
    monkeypatch.setattr("mstar_core.cli.check.discover", lambda: discover(path=[]))
    assert main(["check"]) == 0
    assert capsys.readouterr().err.endswith("install with pip.\n")
    assert main(["check", "toy"]) == 1
    assert "error: unknown model 'toy'" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "status"), [(CheckpointError("no"), 1), (ConfigurationError("no"), 2)])
def test_an_error_with_notes_is_printed_with_them(capsys, error, status):
    from mstar_core.cli.errors import exit_status

    error.add_note("raised by a hook")
    assert exit_status(error) == status
    assert capsys.readouterr().err == "error: no\n  (raised by a hook)\n"
