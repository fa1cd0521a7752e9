"""What a command shows while it works: a line on stderr, if that is a terminal, with a bar once there are steps."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from mstar_core.spec.content import Progress


class Display:
    """Gone without a trace when the block ends; nothing at all where nobody watches."""

    def __init__(self, text: str) -> None:
        console = Console(stderr=True)
        line = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
        steps = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        quiet = not console.is_terminal
        self._line = Bars(*line, console=console, transient=True, disable=quiet)
        self._steps = Bars(*line, *steps, console=console, transient=True, disable=quiet)
        self._shown = self._line
        self._task = self._line.add_task(text, total=None)

    def say(self, text: str) -> None:
        """Say what is being done; the bar goes."""
        self._show(self._line, text)

    def advance(self, progress: Progress) -> None:
        """Show how far an output has come."""
        if self._shown is not self._steps:
            self._show(self._steps, "making it")
        self._steps.update(self._task, completed=progress.done, total=progress.total)

    def _show(self, bars: Bars, text: str) -> None:
        """One of the two is there at a time: a terminal holds one line that changes."""
        if self._shown is bars:
            bars.update(self._task, description=text)
            return
        self._shown.stop()
        self._shown.remove_task(self._task)
        self._shown, self._task = bars, bars.add_task(text, total=None)
        bars.start()

    def __enter__(self) -> Self:
        self._shown.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._shown.stop()
