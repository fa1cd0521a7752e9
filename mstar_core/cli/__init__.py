"""The command `mstar`. A face: each command imports what it needs when it is called."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command (default: `sys.argv`); returns the exit status: 0 done, 1 failed, 2 wrong usage."""
    from mstar_core.cli.group import run

    return run(arguments)
