"""How long to wait before a party that has ended is started again."""

from __future__ import annotations

FIRST_S = 0.2
"""The first wait: a crash that a restart mends costs little."""

MOST_S = 30.0
"""The longest wait: a party that never stays up does not keep its host busy with starting it."""

HEALTHY_S = 60.0
"""A party that was ready for as long counts as sound: what ends it afterwards is a new trouble."""


class Backoff:
    """Doubles the wait with every end, and begins anew after a time of health."""

    def __init__(self) -> None:
        self._next = FIRST_S

    def delay(self, healthy: float) -> float:
        """Seconds until the next start of a party that has just ended and was ready for `healthy` seconds."""
        if healthy >= HEALTHY_S:
            self._next = FIRST_S
        delay = self._next
        self._next = min(delay * 2, MOST_S)
        return delay
