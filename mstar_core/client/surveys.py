"""Asking parties what they count: several threads may ask at once, and a party that is slow is asked only once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence

from mstar_core.wire.messages import Address, Sample


class Survey:
    """One question to several parties, by name, and the answers that have come. Used from any thread."""

    def __init__(self, parties: Iterable[str]) -> None:
        self.over = False
        self._missing = set(parties)
        self._answers: dict[str, list[Sample]] = {}
        self._changed = threading.Condition()

    def answer(self, party: str, samples: Sequence[Sample]) -> None:
        """A party has answered."""
        with self._changed:
            self._missing.discard(party)
            self._answers[party] = list(samples)
            self._changed.notify_all()

    def result(self, timeout: float) -> dict[str, list[Sample]]:
        """Wait up to `timeout` seconds for every party; the answers that have come by then."""
        with self._changed:
            self._changed.wait_for(lambda: not self._missing, timeout)
            self.over = True
            return dict(self._answers)


class Questions:
    """The questions that are on their way. Belongs to the thread that sends and receives messages.

    Who did not answer yet is not asked again: the messages to a party that is gone for a while must not pile up.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._asked: dict[int, Address] = {}
        self._surveys: dict[Address, list[tuple[str, Survey]]] = {}

    def ask(self, party: str, address: Address, survey: Survey) -> int | None:
        """Give the next answer from `address` to the survey too; the number of a question to send, if one is needed."""
        asked = address in self._surveys
        waiting = [each for each in self._surveys.get(address, ()) if not each[1].over]
        self._surveys[address] = [*waiting, (party, survey)]
        if asked:
            return None
        number = next(self._numbers)
        self._asked[number] = address
        return number

    def answered(self, number: int, samples: Sequence[Sample]) -> None:
        """An answer has come; one to a question that was forgotten is fine."""
        address = self._asked.pop(number, None)
        if address is not None:
            for party, survey in self._surveys.pop(address, ()):
                survey.answer(party, samples)

    def forget(self, address: Address) -> None:
        """A party is gone, and with it the question: who takes its place is asked anew."""
        self._surveys.pop(address, None)
        self._asked = {number: asked for number, asked in self._asked.items() if asked != address}
