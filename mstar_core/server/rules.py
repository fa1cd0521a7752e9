"""Rules that fields of several routes follow: a text that is not blank, a name out of some."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import AfterValidator

from mstar_core.errors import InvalidRequest, nearest
from mstar_core.server.body import shown


def choice(value: str, known: Collection[str]) -> str:
    """`value`, if it is known; raises `ValueError` with the names there are, for validators of schemas."""
    if value in known:
        return value
    raise ValueError(f"must be one of {', '.join(known)}; got {shown(value)}{nearest(value, known)}")


def chosen(value: object, known: Collection[str], at: str) -> str:
    """The value at the path `at`, if it is a known name; raises `InvalidRequest` with the names there are."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{at!r} must be one of {', '.join(known)}; got {shown(value)}", param=at)
    try:
        return choice(value, known)
    except ValueError as error:
        raise InvalidRequest(f"{at!r} {error}", param=at) from None


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must hold some text, got only blanks" if text else "must not be empty")
    return text


NotBlank = Annotated[str, AfterValidator(_not_blank)]
"""A text that says something."""
