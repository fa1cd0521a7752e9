"""M*: a serving system for composite multimodal models.

For users: `Engine` runs a model in this process, `read_media` and `read_tensor` make its inputs of files. For plugin
authors: `hookimpl` marks a hook; `mstar_core.spec` has what a plugin declares, `mstar_core.nn` and `mstar_core.engines`
what its nodes are made of. Importing this package loads nothing; an attribute loads its module on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mstar_core.client.engine import Engine as Engine
    from mstar_core.client.files import read_media as read_media
    from mstar_core.client.files import read_tensor as read_tensor
    from mstar_core.plugins.hookspecs import hookimpl as hookimpl

__version__ = "0.1.0"

__all__ = ["Engine", "__version__", "hookimpl", "read_media", "read_tensor"]

_MODULES = {
    "Engine": "mstar_core.client.engine",
    "hookimpl": "mstar_core.plugins.hookspecs",
    "read_media": "mstar_core.client.files",
    "read_tensor": "mstar_core.client.files",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mstar_core' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
