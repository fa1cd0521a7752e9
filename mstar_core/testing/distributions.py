"""Fake installed distributions: a package's source and its `dist-info`, as pip would leave them in `site-packages`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

from mstar_core.env import canonical_name
from mstar_core.plugins.discovery import GROUP


def install(
    directory: Path,
    name: str,
    source: str | None,
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> Path:
    """Install the plugin `name`, whose one module holds `source`, into `directory`; returns its dist-info directory.

    The module is named like the distribution (`mstar-toy`: `mstar_toy`). Without a `source` the code is absent while
    the metadata is there, which is a stale copy. `files` go into the package, by relative path.
    """
    module = canonical_name(name).replace("-", "_")
    written = [_write(directory / module / path, text) for path, text in (files or {}).items()]
    if source is not None:
        written.append(_write(directory / module / "__init__.py", dedent(source)))
    info = directory / f"{module}-{version}.dist-info"
    requirements = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    _write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirements}\n")
    _write(info / "entry_points.txt", f"[{GROUP}]\n{name.removeprefix('mstar-')} = {module}\n")
    recorded = {f"{module}/__init__.py", *(str(path.relative_to(directory)) for path in written)}
    _write(info / "RECORD", "".join(f"{path},,\n" for path in sorted(recorded)))
    return info


def leave_empty(directory: Path, name: str, version: str = "1.0") -> Path:
    """An empty dist-info directory, as an interrupted uninstallation leaves it."""
    info = directory / f"{canonical_name(name).replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    return info


def toy_source(model: str, package: str, *, api: int = 1) -> str:
    """The source of a small plugin that registers `model`: one node, one walk, and a checkpoint `tiny` in `package`."""
    return _TOY.format(model=model, package=package, api=api)


TOY_FILES = {"tiny/config.json": "{}", "nodes.py": "import torch\n\n\ndef build():\n    return torch.nn.Identity()\n"}
"""What the plugin of `toy_source` has in its package beside its module."""

_TOY = """
from mstar_core import hookimpl
from mstar_core.spec.graph import Emit, Node, Port, RequestInput, Run, Sequential, Walk, WalkSet
from mstar_core.spec.machine import Start, Transition
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig


class Machine:
    def start(self, request):
        return Transition(state=None, start=(Start("echo"),))

    def advance(self, state, event):
        return Transition(state=None, end="stop")

    def demand(self, request):
        return {{}}


@hookimpl
def mstar_models():
    tiny = Checkpoint(name="tiny", source="{package}:tiny")
    card = ModelCard(name="{model}", family="toy", summary="Says what it is told.", inputs=("text",), outputs=("text",),
                     checkpoints=(tiny,), api={api})
    return [card]


@hookimpl
def mstar_config(card, checkpoint):
    return ModelConfig(values=(checkpoint / "config.json").read_text(), parameters=())


@hookimpl
def mstar_nodes():
    return [Node(name="echo", engine="stateless", inputs=(Port("text"),), outputs=(Port("reply"),),
                 factory="{package}.nodes:build")]


@hookimpl
def mstar_walks():
    body = Sequential(Run("echo"), Emit("reply", "text"))
    return WalkSet(walks=(Walk(name="echo", partition="main", body=body),), inputs=(RequestInput(name="text"),))


@hookimpl
def mstar_state_machine():
    return Machine()
"""


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
