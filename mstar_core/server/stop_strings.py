"""Where a text that comes in pieces is to stop."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on up to the string that is complete first, and may begin in one piece and end in a later one.

    What might be the beginning of one is held back. `found` says that one has come: all after that is to be ignored.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.found = False
        self._strings = strings
        self._held = ""

    def push(self, text: str) -> str:
        """Take a piece; return what is certain to come before a stop string."""
        text = self._held + text
        places = [(text.find(string), len(string)) for string in self._strings if string in text]
        if places:
            self.found, self._held = True, ""
            begin, _ = min(places, key=lambda place: (sum(place), place))
            return text[:begin]
        keep = max((_overlap(text, string) for string in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """How many characters at the end of the text the string, not all of it, may begin with."""
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)
