"""Every environment variable of M*, in one table.

Each is declared here with its type, default and meaning, read with `VARIABLE.get()` where it acts, and listed by
`mstar --help`. A value that cannot be is a `ConfigurationError`; a name that M* does not know is worth a warning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mstar_core.errors import ConfigurationError, nearest

PREFIX = "MSTAR_"

T = TypeVar("T")

_DISTRIBUTION = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable(Generic[T]):
    """One variable. `parse` turns its text into a value and raises `ValueError` with what would be valid."""

    name: str
    parse: Callable[[str], T]
    default: T
    form: str
    doc: str

    def get(self, environ: Mapping[str, str] | None = None) -> T:
        """The variable's value; the default when it is unset or blank. Raises `ConfigurationError`."""
        text = (os.environ if environ is None else environ).get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise ConfigurationError(f"{self.name}={text!r}: {error}; expected {self.form}") from None


def canonical_name(name: str) -> str:
    """A distribution's name as PyPI compares it (lower case, runs of `-_.` as one `-`; PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distribution_names(text: str) -> frozenset[str]:
    """Names of distributions, separated by commas, in canonical form."""
    names = [canonical_name(part.strip()) for part in text.split(",") if part.strip()]
    for name in names:
        if not _DISTRIBUTION.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a distribution")
    return frozenset(names)


PLUGINS: Variable[frozenset[str] | None] = Variable(
    name="MSTAR_PLUGINS",
    parse=distribution_names,
    default=None,
    form="names of distributions separated by commas, such as mstar-a,mstar-b",
    doc="The only plugins that may be imported. Unset: every installed one.",
)

BLOCK_PLUGINS: Variable[frozenset[str]] = Variable(
    name="MSTAR_BLOCK_PLUGINS",
    parse=distribution_names,
    default=frozenset(),
    form="names of distributions separated by commas, such as mstar-a,mstar-b",
    doc="Plugins that are not imported, even when MSTAR_PLUGINS names them.",
)

API_KEYS: Variable[tuple[str, ...]] = Variable(
    name="MSTAR_API_KEYS",
    parse=lambda text: tuple(key.strip() for key in text.split(",") if key.strip()),
    default=(),
    form="keys separated by commas",
    doc="API keys of `mstar serve`, beside those of --api-key. Unset, and none given: every route is open.",
)

VARIABLES: tuple[Variable[Any], ...] = (PLUGINS, BLOCK_PLUGINS, API_KEYS)
"""The table, in the order in which it is shown."""


def block_command(name: str) -> str:
    """The shell command that keeps a plugin out beside those that are kept out already."""
    return set_command(BLOCK_PLUGINS.name, BLOCK_PLUGINS.get() | {name})


def set_command(variable: str, names: frozenset[str]) -> str:
    """The shell command that gives a variable this list of names."""
    return f"export {variable}={','.join(sorted(names))}" if names else f"unset {variable}"


def warnings(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """A line for each variable with M*'s prefix that M* does not know."""
    known = [variable.name for variable in VARIABLES]
    names = sorted(name for name in (os.environ if environ is None else environ) if name.startswith(PREFIX))
    return tuple(
        f"environment variable {name} has no effect{nearest(name, known)}" for name in names if name not in known
    )
