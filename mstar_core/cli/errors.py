"""From an error to a message on stderr and an exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""

from __future__ import annotations

import os
import sys

import click

from mstar_core.errors import ConfigurationError, MStarError

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


def exit_status(error: Exception) -> int:
    """Print an error that a user can act on and return the exit status; raises what is a fault of M* itself."""
    match error:
        case click.ClickException():
            error.show()
            return error.exit_code
        case click.Abort():
            return INTERRUPTED
        case MStarError():
            click.echo("\n".join([f"error: {error}", *(f"  ({note})" for note in notes(error))]), err=True)
            return WRONG_USAGE if isinstance(error, ConfigurationError) else FAILED
        case BrokenPipeError():
            # The reader left (`mstar list-models | head -1`). Without this the interpreter complains when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        case _:
            raise error


def notes(error: BaseException) -> list[str]:
    """The notes that were added to an error on its way."""
    return list(getattr(error, "__notes__", ()))
