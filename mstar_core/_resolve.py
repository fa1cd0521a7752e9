"""Import strings: `"package.module:attribute"`, resolved only where the code behind them is needed."""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import Any

from mstar_core.errors import PluginError, nearest

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def resolve(target: str, *, purpose: str) -> Any:
    """The object that `package.module:attribute` names.

    `purpose` says whose string it is (`"factory of node 'decoder'"`) and opens every error. Raises `PluginError` for a
    malformed string, a module that is missing or raises when imported, and an attribute that the module lacks.
    """
    if not _TARGET.fullmatch(target):
        raise PluginError(f"{purpose}: {target!r} is not of the form 'package.module:attribute'")
    module_name, _, attributes = target.partition(":")
    value: Any = _module(module_name, target, purpose)
    owner = module_name
    for attribute in attributes.split("."):
        if not hasattr(value, attribute):
            raise PluginError(
                f"{purpose}: {target!r}: {owner} has no {attribute!r}{nearest(attribute, dir(value))}{_place(value)}"
            )
        value = getattr(value, attribute)
        owner = f"{owner}.{attribute}"
    return value


def _module(name: str, target: str, purpose: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = "" if error.name and f"{name}.".startswith(f"{error.name}.") else f" (needed by {name})"
        raise PluginError(f"{purpose}: {target!r}: there is no module {error.name!r}{missing}") from error
    except Exception as error:  # a plugin's module body may raise anything
        raise PluginError(f"{purpose}: {target!r}: importing {name} raised {type(error).__name__}: {error}") from error


def _place(value: Any) -> str:
    path = getattr(value, "__file__", None)
    return f"; looked in {path}" if path else ""
