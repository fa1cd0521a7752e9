"""The border around a plugin's code: whatever it raises or prints stays its own."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator

from mstar_core.errors import MStarError, PluginError

_MACHINERY = frozenset({"importlib", "_frozen_importlib", "_frozen_importlib_external", "pluggy", "mstar_core"})
"""Top-level modules whose frames say nothing about what a plugin did."""


@contextlib.contextmanager
def isolated(action: str) -> Iterator[None]:
    """Run a plugin's code, with what it prints sent to stderr, where it cannot garble a command's output.

    Any raise becomes a `PluginError` that opens with `action` and has the raised error as its cause. An error that the
    plugin raised on purpose (an `MStarError`, such as a `CheckpointError`) passes with a note of its origin.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except MStarError as error:
        error.add_note(f"raised by {action}")
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything, SystemExit included
        raise PluginError(f"{action} raised {describe(error)}") from error


def describe(error: BaseException) -> str:
    """The error's type and message, and the line of the plugin, or of what it called, that raised it."""
    text = " ".join(str(error).split())
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = _frames(error)
    if isinstance(error, SyntaxError) or not frames:  # a SyntaxError's message has the place already
        return named
    return f"{named} ({frames[-1].filename}:{frames[-1].lineno})"


def traceback_of(error: BaseException | None) -> str:
    """The traceback from the plugin's first line on, for its author; empty for no error."""
    if error is None:
        return ""
    return "".join(traceback.format_list(_frames(error)) + traceback.format_exception_only(error))


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The error's frames from the first that is not machinery."""
    modules = [
        str(frame.f_globals.get("__name__", "")).partition(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    first = next((index for index, module in enumerate(modules) if module not in _MACHINERY), len(modules))
    return list(traceback.extract_tb(error.__traceback__))[first:]
