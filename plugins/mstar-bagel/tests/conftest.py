"""Where the recorded reference cases lie, and services of this plugin's model, for all tests.

An argument named as one of `KINDS` makes a test run once for every recorded case of that kind.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mstar_bagel import plugin
from mstar_bagel.config import BagelConfig
from safetensors import safe_open

from mstar_core.client.service import Service
from mstar_core.engines.base import NodeContext
from mstar_core.testing.plugins import registry_with

DATA = Path(__file__).parent / "data"
TINY = Path(__file__).parents[1] / "src/mstar_bagel/checkpoints/tiny"

KINDS = {
    "text_case": "text",
    "understanding_case": "understand",
    "image_case": "image",
    "vae_case": "vae",
    "vit_case": "vit",
    "pieces_case": "pieces",
}
"""The kind of case that each argument stands for."""


@dataclass(frozen=True)
class Case:
    """One recorded case of the set in `directory`, which is a checkpoint too; `about` is its entry in `cases.json`."""

    directory: Path
    name: str
    about: Mapping[str, Any]
    tolerance: Mapping[str, Any]

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by their recorded names."""
        with safe_open(self.directory / "cases.safetensors", framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(f"{self.name}.")]  # noqa: SIM118 (not a mapping)
            return {name.removeprefix(f"{self.name}."): file.get_tensor(name) for name in names}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def check(self, found: Any, name: str) -> None:
        """Compare with a recorded tensor: floats by their largest difference over the recorded rms, others exactly."""
        wanted = self.tensors[name]
        found = torch.as_tensor(found)
        assert found.shape == wanted.shape, f"{name}: {tuple(found.shape)} instead of {tuple(wanted.shape)}"
        if not wanted.is_floating_point():
            assert torch.equal(found.to(wanted.dtype), wanted), name
            return
        error = (found.float() - wanted).abs().max() / wanted.square().mean().sqrt()
        assert error <= self.tolerance["float32"], f"{name}: {error:.2g} of the recorded rms"

    def check_picture(self, found: Any, name: str) -> None:
        """Compare levels: one apart at most, and on no more than 0.5 % of the values."""
        apart = np.abs(np.asarray(found).astype(int) - self.tensors[name].numpy().astype(int))
        assert apart.max() <= 1
        assert (apart > 0).mean() <= 0.005


def pytest_addoption(parser: pytest.Parser) -> None:
    # Another plugin's tests in the same session may have added the option already.
    with contextlib.suppress(ValueError):
        parser.addoption("--golden", metavar="DIR", help="directory of recorded reference cases (default: tests/data)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument, kind in KINDS.items():
        if argument in metafunc.fixturenames:
            cases = [case for case in _cases(metafunc.config) if case.about["kind"] == kind]
            metafunc.parametrize(argument, cases, ids=[f"{case.directory.name}-{case.name}" for case in cases])


def _cases(config: pytest.Config) -> list[Case]:
    """The cases of all of this model's sets below the directory that `--golden` names."""
    root = Path(config.getoption("--golden", default=None) or DATA)
    found = []
    for path in sorted(root.rglob("cases.json")):
        shape = path.parent / "config.json"
        if not shape.is_file() or json.loads(shape.read_text()).get("model_type") != "bagel":
            continue
        recorded = json.loads(path.read_text())
        tolerance = recorded["tolerance"]
        found += [Case(path.parent, name, about, tolerance) for name, about in recorded["cases"].items()]
    return found


@pytest.fixture(scope="session")
def fixture_dir() -> Path:
    """The recorded set that ships with the tests, whatever `--golden` says."""
    return DATA / "bagel"


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The bundled checkpoint."""
    return TINY


@pytest.fixture(scope="session")
def registry():
    """Only this plugin, whatever else is installed."""
    return registry_with(plugin)


@pytest.fixture(scope="session")
def context() -> Callable[[Path], NodeContext]:
    """What the nodes of a checkpoint are built with, on the CPU in float32."""

    def making(directory: Path) -> NodeContext:
        return NodeContext(
            node=None,
            config=BagelConfig.read(directory),
            checkpoint=directory,
            device=torch.device("cpu"),
            dtype=torch.float32,
        )

    return making


@pytest.fixture(scope="session")
def serve(registry) -> Callable[..., contextlib.AbstractContextManager[Service]]:
    """Serves a checkpoint (a name or directory; default: the bundled one) while a block runs."""

    @contextlib.contextmanager
    def serving(checkpoint: Path | str | None = None, placement: Any = None) -> Iterator[Service]:
        chosen = {} if checkpoint is None else {"bagel": str(checkpoint)}
        with Service.start(["bagel"], checkpoints=chosen, placement=placement, registry=registry) as service:
            yield service

    return serving


@pytest.fixture(scope="session")
def served(serve) -> Iterator[Callable[..., Service]]:
    """The service of a checkpoint; it runs until the tests are over."""
    with contextlib.ExitStack() as stack:
        running: dict[str, Service] = {}

        def get(checkpoint: Path | str | None = None) -> Service:
            key = str(checkpoint)
            if key not in running:
                running[key] = stack.enter_context(serve(checkpoint))
            return running[key]

        yield get
