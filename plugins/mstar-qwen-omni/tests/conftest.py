"""Where the recorded reference cases lie, and nodes and processors of a checkpoint, for all tests of this plugin."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.media.settings import MediaSettings
from mstar_qwen_omni.processor import QwenOmniProcessor

from mstar_core.engines.base import NodeContext

_DEFAULT = Path(__file__).parent / "data"

PARAMS = {"max_tokens": 64, "audio_padding": "own", "use_audio_in_video": False, "fps": 1.0}
"""What the processor reads of a request's parameters."""


def pytest_addoption(parser: pytest.Parser) -> None:
    # Another plugin's tests in the same session may have added the option already.
    with contextlib.suppress(ValueError):
        parser.addoption("--golden", metavar="DIR", help="directory of recorded reference cases (default: tests/data)")


@pytest.fixture(scope="session")
def golden_dir(request: pytest.FixtureRequest) -> Path:
    """The directory with the checkpoint, `cases.json` and `cases.safetensors`: DIR/qwen_omni, or DIR itself."""
    root = Path(request.config.getoption("--golden", default=None) or _DEFAULT)
    inner = root / "qwen_omni"
    return inner if inner.is_dir() else root


@pytest.fixture(scope="session")
def fixture_dir() -> Path:
    """The recorded cases that ship with the tests, whatever `--golden` says."""
    return _DEFAULT / "qwen_omni"


@pytest.fixture(scope="session")
def context() -> Callable[[Path], NodeContext]:
    """What the nodes of a checkpoint are built with, on the CPU in float32."""

    def making(directory: Path) -> NodeContext:
        return NodeContext(
            node=None,
            config=QwenOmniConfig.read(directory),
            checkpoint=directory,
            device=torch.device("cpu"),
            dtype=torch.float32,
        )

    return making


@pytest.fixture(scope="session")
def settings(fixture_dir) -> MediaSettings:
    """How the recorded checkpoint wants its media."""
    return MediaSettings.read(fixture_dir)


@pytest.fixture(scope="session")
def config(fixture_dir) -> QwenOmniConfig:
    """The recorded checkpoint's configuration."""
    return QwenOmniConfig.read(fixture_dir)


@pytest.fixture(scope="session")
def processor(fixture_dir, config) -> QwenOmniProcessor:
    """The recorded checkpoint's processor."""
    return QwenOmniProcessor(config, fixture_dir)


@pytest.fixture(scope="session")
def prepare(processor) -> Callable[..., dict[str, list[Any]]]:
    """The inputs that a processor (the recorded checkpoint's, unless another is named) makes of contents."""

    def preparing(*content: Any, by: QwenOmniProcessor = processor, **params: Any) -> dict[str, list[Any]]:
        return dict(by.prepare(content, PARAMS | params).inputs)

    return preparing
