"""Where the recorded reference cases lie, and services of this plugin's models, for all tests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mstar_vjepa import plugin
from mstar_vjepa.clip.config import ClipConfig
from mstar_vjepa.world.config import WorldConfig

from mstar_core.client.service import Service
from mstar_core.engines.base import NodeContext
from mstar_core.spec.content import Text
from mstar_core.testing.plugins import registry_with

DATA = Path(__file__).parent / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    # Another plugin's tests in the same session may have added the option already.
    with contextlib.suppress(ValueError):
        parser.addoption("--golden", metavar="DIR", help="directory of recorded reference cases (default: tests/data)")


@pytest.fixture(scope="session")
def fixture_dir() -> Path:
    """The recorded sets that ship with the tests, whatever `--golden` says."""
    return DATA / "vjepa"


@pytest.fixture(scope="session")
def registry():
    """Only this plugin, whatever else is installed."""
    return registry_with(plugin)


@pytest.fixture(scope="session")
def context():
    """What the nodes of a checkpoint are built with, on the CPU in float32."""

    def making(directory: Path) -> NodeContext:
        kind = json.loads((directory / "config.json").read_text())["model_type"]
        config = ClipConfig.read(directory) if kind == "vjepa2" else WorldConfig.read(directory)
        return NodeContext(
            node=None, config=config, checkpoint=directory, device=torch.device("cpu"), dtype=torch.float32
        )

    return making


@pytest.fixture(scope="session")
def serve(registry) -> Callable[..., contextlib.AbstractContextManager[Service]]:
    """Serves one model (a checkpoint's name or directory; default: the card's first) while a block runs."""

    @contextlib.contextmanager
    def serving(model: str, checkpoint: Path | str | None = None, placement: Any = None) -> Iterator[Service]:
        chosen = {} if checkpoint is None else {model: str(checkpoint)}
        with Service.start([model], checkpoints=chosen, placement=placement, registry=registry) as service:
            yield service

    return serving


@pytest.fixture(scope="session")
def served(serve) -> Iterator[Callable[..., Service]]:
    """The service of a model and checkpoint; it runs until the tests are over."""
    with contextlib.ExitStack() as stack:
        running: dict[tuple[str, str], Service] = {}

        def get(model: str, checkpoint: Path | str | None = None) -> Service:
            key = (model, str(checkpoint))
            if key not in running:
                running[key] = stack.enter_context(serve(model, checkpoint))
            return running[key]

        yield get


@pytest.fixture(scope="session")
def collect() -> Callable[..., dict[str, list[np.ndarray]]]:
    """What a ticket gives: arrays by name in order, text under `text`, the finish reason under `end`."""

    def collecting(ticket) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for content in ticket:
            if isinstance(content, Text):
                made["text"] = content.text
            else:
                made.setdefault(content.name, []).append(content.array)
        return {**made, "end": ticket.end.reason}

    return collecting


@pytest.fixture(scope="session")
def ask(collect) -> Callable[..., dict[str, Any]]:
    """One request: content and parameters in, what came out."""

    def asking(service: Service, content, **params: object) -> dict[str, Any]:
        (model,) = service.models
        return collect(service.submit(model, content, params))

    return asking
