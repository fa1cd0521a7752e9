"""Where the recorded reference cases lie, for all tests of this plugin."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

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
