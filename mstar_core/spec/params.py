"""Request parameters: what a client may set, declared once by the model and enforced by every face."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mstar_core.errors import InvalidRequest, nearest

SEED_LIMIT = 2**63
"""Seeds are 0 to 2^63 - 1: what a signed 64-bit integer holds without its sign."""

_KINDS = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "a string"}
_NUMBERS: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One request parameter. `kind` is `int`, `float`, `bool` or `str`; a default of None means "not set".

    `minimum` and `maximum` are inclusive; `exclusive_minimum` is not. `doc` is one sentence shown by `--help` and in
    errors.
    """

    name: str
    kind: str
    default: int | float | bool | str | None = None
    minimum: int | float | None = None
    maximum: int | float | None = None
    exclusive_minimum: int | float | None = None
    choices: tuple[str, ...] = ()
    doc: str = ""

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"parameter {self.name!r}: kind {self.kind!r} is none of {', '.join(_KINDS)}")

    def check(self, value: object) -> int | float | bool | str:
        """The value, converted to the parameter's kind; raises `InvalidRequest` naming the field and what is valid."""
        match value:
            case bool() if self.kind == "bool":
                return value
            case str() if self.kind == "str":
                return self._checked_text(value)
            case int() | float() if not isinstance(value, bool) and isinstance(value, _NUMBERS.get(self.kind, ())):
                return self._checked_number(value)
        raise self._invalid(f"must be {_KINDS[self.kind]}, got {_shown(value)}")

    def _checked_text(self, value: str) -> str:
        if self.choices and value not in self.choices:
            hint = nearest(value, self.choices)
            raise self._invalid(f"must be one of {', '.join(self.choices)}; got {_shown(value)}{hint}")
        return value

    def _checked_number(self, value: int | float) -> int | float:
        if isinstance(value, float) and not math.isfinite(value):
            raise self._invalid(f"must be a finite number, got {value}")
        low, above, high = self.minimum, self.exclusive_minimum, self.maximum
        if (low is not None and value < low) or (above is not None and value <= above):
            bound = f"at least {_plain(low)}" if low is not None else f"greater than {_plain(above or 0)}"
            raise self._invalid(f"must be {bound}, got {value}")
        if high is not None and value > high:
            raise self._invalid(f"must be at most {_plain(high)}, got {value}")
        return float(value) if self.kind == "float" else value

    def _invalid(self, problem: str) -> InvalidRequest:
        return InvalidRequest(f"{self.name!r} {problem}", param=self.name)


SEED = Parameter(
    name="seed",
    kind="int",
    minimum=0,
    maximum=SEED_LIMIT - 1,
    doc="Same seed, same output; drawn at random when left out.",
)
"""The one parameter that every model has: core adds it to the model's own."""


def check_parameters(parameters: Sequence[Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """Every parameter's value for one request: what was given, checked, and the defaults for the rest.

    An unknown name and a null are refused with the nearest valid name and the field.
    """
    known = {parameter.name: parameter for parameter in parameters}
    for name, value in given.items():
        if name not in known:
            raise InvalidRequest(f"unknown field {name!r}{nearest(name, known)}", param=name)
        if value is None:
            raise InvalidRequest(f"{name!r} must not be null; leave it out for the default", param=name)
    return {
        name: parameter.check(given[name]) if name in given else parameter.default for name, parameter in known.items()
    }


def _shown(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _plain(number: int | float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"
