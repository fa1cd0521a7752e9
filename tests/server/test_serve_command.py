import logging
import socket

import click
import pytest

from mstar_core.cli import main
from mstar_core.cli.serve import by_model


@pytest.fixture(autouse=True)
def logging_as_before():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_checkpoint_without_a_model_is_that_of_every_model():
    assert by_model(["a", "b"], ["tiny"]) == {"a": "tiny", "b": "tiny"}


def test_checkpoint_with_a_model_is_that_of_the_model_only():
    assert by_model(["a", "b"], ["a=./fine=tuned"]) == {"a": "./fine=tuned"}


def test_checkpoint_of_a_model_that_is_not_served_is_refused_with_the_nearest():
    with pytest.raises(click.UsageError, match="did you mean 'speaker'"):
        by_model(["speaker"], ["speeker=tiny"])


def test_second_checkpoint_of_a_model_is_refused():
    with pytest.raises(click.UsageError, match="has one already, tiny"):
        by_model(["a"], ["tiny", "a=large"])


def test_port_in_use_is_a_pointed_error_before_models_are_looked_for(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "no-such-model", "--port", str(port)]) == 2
    assert f"127.0.0.1:{port} is in use" in capsys.readouterr().err


def test_unknown_model_ends_with_its_reason(capsys):
    assert main(["serve", "no-such-model", "--port", "0"]) == 1
    assert "no-such-model" in capsys.readouterr().err


def test_host_of_media_is_checked(capsys):
    assert main(["serve", "no-such-model", "--port", "0", "--allow-media-host", "https://a.example"]) == 2
    assert "a host of media must be HOST or HOST:PORT" in capsys.readouterr().err


def test_api_key_of_the_environment_is_checked(capsys, monkeypatch):
    monkeypatch.setenv("MSTAR_API_KEYS", "good, kéy")
    assert main(["serve", "no-such-model", "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert "printable ASCII" in error
    assert "kéy" not in error
