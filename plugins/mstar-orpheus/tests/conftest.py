"""Where the recorded reference cases lie, and a service that speaks, for all tests of this plugin."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from mstar_orpheus import plugin

from mstar_core.client.service import Service
from mstar_core.spec.content import Text
from mstar_core.testing.plugins import registry_with

_DEFAULT = Path(__file__).parent / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    # Another plugin's tests in the same session may have added the option already.
    with contextlib.suppress(ValueError):
        parser.addoption("--golden", metavar="DIR", help="directory of recorded reference cases (default: tests/data)")


@pytest.fixture(scope="session")
def golden_dir(request: pytest.FixtureRequest) -> Path:
    """The directory with `snac/`, `llm/`, `cases.json`, `cases.safetensors`: DIR/orpheus, or DIR itself."""
    root = Path(request.config.getoption("--golden", default=None) or _DEFAULT)
    inner = root / "orpheus"
    return inner if inner.is_dir() else root


@pytest.fixture(scope="session")
def fixture_dir() -> Path:
    """The recorded cases that ship with the tests, whatever `--golden` says."""
    return _DEFAULT / "orpheus"


@pytest.fixture(scope="session")
def registry():
    """Only this plugin, whatever else is installed."""
    return registry_with(plugin)


@pytest.fixture(scope="session")
def serve(registry) -> Callable[..., contextlib.AbstractContextManager[Service]]:
    """Serves a checkpoint (a name or a directory; default: the card's first) while a block runs."""

    @contextlib.contextmanager
    def serving(checkpoint: Path | str | None = None) -> Iterator[Service]:
        chosen = {} if checkpoint is None else {"orpheus": str(checkpoint)}
        with Service.start(["orpheus"], checkpoints=chosen, registry=registry) as service:
            yield service

    return serving


@pytest.fixture(scope="session")
def speak() -> Callable[..., tuple[np.ndarray, str]]:
    """One request: its samples, and why it ended."""

    def speaking(service: Service, text: str, **params: object) -> tuple[np.ndarray, str]:
        ticket = service.submit("orpheus", [Text(text)], params)
        pieces = [np.zeros(0, np.float32), *(content.samples for content in ticket)]
        return np.concatenate(pieces), ticket.end.reason

    return speaking
