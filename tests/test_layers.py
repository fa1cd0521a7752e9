"""Who may import whom: imports point to lower layers, and nothing up to the conductor, nor `media`, imports torch."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import mstar_core

ROOT = Path(mstar_core.__file__).parent

LAYERS = [
    {"errors", "_resolve", "env", "log", "checkpoints"},
    {"spec"},
    {"plugins"},
    {"wire"},
    {"conductor"},
    {"wire.tensors"},
    {"engines"},
    {"nn"},
    {"worker"},
    {"launch"},
    {"media", "client", "server", "cli", "testing"},
]
"""Lowest first. The torch line is above `conductor`; the last are the faces, which import each other as they need."""

TORCH_FREE = set().union(*LAYERS[:5], {"media"})

ROOT_MODULES = {"__init__", "__main__"}
"""The package itself, which names its lazy attributes in strings, and the module that starts the command line."""

FAMILIES = {"orpheus", "bagel", "qwen", "vjepa", "jepa", "snac"}
"""Words of models that plugins bring; nothing in the core may depend on one."""

TREES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text())
    for path in sorted(ROOT.rglob("*.py"))
}
"""Every module of the core, by its dotted path below the package."""


def area(name):
    """The part of the core that a module belongs to, as `LAYERS` names it."""
    first, _, rest = name.partition(".")
    half = f"{first}.{rest.partition('.')[0]}"
    return half if any(half in layer for layer in LAYERS) else first


def rank(name):
    """The number of a module's layer; the package's own attributes are below all."""
    return next((number for number, layer in enumerate(LAYERS) if area(name) in layer), -1)


def imports(tree):
    """What a tree imports, at any level of nesting."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import at line {node.lineno}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def core_imports():
    """Every import of the core by the core: importing and imported module, both without the package's name."""
    for name, tree in TREES.items():
        if name not in ROOT_MODULES:
            yield from (
                (name, imported.removeprefix("mstar_core."))
                for imported in imports(tree)
                if imported.startswith("mstar_core.")
            )


def words(tree):
    """The words of a tree's names and strings, docstrings left out."""
    prose = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        texts = [getattr(node, field, None) for field in ("id", "attr", "name", "arg", "module")]
        if isinstance(node, ast.Constant) and id(node) not in prose:
            texts.append(node.value)
        for text in texts:
            if isinstance(text, str):
                yield from re.findall("[a-z]+", text.lower())


def test_every_module_belongs_to_a_layer():
    assert {area(name) for name in TREES} - ROOT_MODULES <= set().union(*LAYERS)


def test_imports_point_to_lower_layers_or_stay_in_their_own():
    assert [pair for pair in core_imports() if rank(pair[1]) > rank(pair[0])] == []


def test_nobody_imports_the_command_line_or_the_test_kit():
    private = ("cli", "testing")
    assert [pair for pair in core_imports() if area(pair[1]) in private and area(pair[0]) != area(pair[1])] == []


def test_nothing_above_the_torch_line_imports_torch_at_any_level():
    heavy = ("torch", "transformers", "flashinfer")
    assert [
        (name, imported)
        for name, tree in TREES.items()
        if area(name) in TORCH_FREE
        for imported in imports(tree)
        if imported.split(".")[0] in heavy
    ] == []


def test_nothing_in_the_core_names_a_model():
    assert [(name, word) for name, tree in TREES.items() for word in words(tree) if word in FAMILIES] == []


BLOCKED = """
import importlib, sys
from importlib.abc import MetaPathFinder

class NoTorch(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise AssertionError("torch was imported")

sys.meta_path.insert(0, NoTorch())
import mstar_core
assert not {"pluggy", "click"} & set(sys.modules), "import mstar_core loads something"
from mstar_core.cli import main
for arguments in (["list-models"], ["plugins"], ["graph", "--help"], ["check", "--help"]):
    assert main(arguments) == 0
loaded = {"pydantic", "rich", "fastapi", "numpy"} & set(sys.modules)
assert not loaded, f"listing loads {loaded}"
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_all_above_the_torch_line_and_the_listing_commands_work_with_torch_blocked():
    names = [f"mstar_core.{name}" for name in TREES if area(name) in TORCH_FREE]
    result = subprocess.run(
        [sys.executable, "-c", BLOCKED, *names],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT.parent,
        env={**os.environ, "MSTAR_PLUGINS": "mstar-none-at-all"},
    )
    assert result.returncode == 0, result.stderr
