"""Where a declaration was written, so that an error about it can point there."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = str(Path(__file__).parent)


def call_site() -> str:
    """`file:line` of the nearest caller outside this package (and outside a dataclass's generated `__init__`)."""
    frame = sys._getframe(1)
    while frame.f_back and (frame.f_code.co_filename.startswith(_HERE) or frame.f_code.co_filename == "<string>"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
