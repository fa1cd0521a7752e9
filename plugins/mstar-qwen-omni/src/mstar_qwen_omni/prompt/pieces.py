"""What turns are made of, in tokens: words, sounds, pictures, clips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mstar_core.spec.content import Role


@dataclass(frozen=True, slots=True)
class Words:
    """Text."""

    text: str


@dataclass(frozen=True, slots=True)
class Sound:
    """A sound that the thinker reads in `tokens` rows."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Still:
    """A picture of `rows` x `columns` tokens."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Film:
    """A clip of `steps` grids of `rows` x `columns` tokens, `seconds` apart.

    `sound` are the tokens of its sound where that is heard with it.
    """

    steps: int
    rows: int
    columns: int
    seconds: float
    sound: int = 0


Piece: TypeAlias = "Words | Sound | Still | Film"


@dataclass(frozen=True, slots=True)
class Turn:
    """Who spoke, and what was said and shown, in this order."""

    role: Role
    pieces: tuple[Piece, ...]
