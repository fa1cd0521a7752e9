"""The contexts of a request: what the picture sees that is being made, and what guidance leaves out of it.

`main` has seen everything. `cfg_text` lacks the last text (and the thinking), `cfg_img` the pictures (and the
thinking). A context without is main's fork, made just before main sees what it is to lack; until then main stands for
it, so that nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAIN, TEXT, IMAGE = "main", "cfg_text", "cfg_img"

THINKING = "thinking"
"""A fork of main on which thoughts are decoded; they are read again as a segment, and the fork is dropped."""

APART = {"llm_text": TEXT, "llm_image": IMAGE}
"""The optional nodes, and the context that each takes over from `llm`."""

_LACKS = {
    "prefill_prompt": {TEXT},
    "prefill_vae": {IMAGE},
    "prefill_vit": {IMAGE},
    "prefill_thought": {TEXT, IMAGE},
}
"""Which contexts do not see what a walk reads."""


def wanted(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The contexts that a request's guidance compares: none but main with a text scale of 1 or less."""
    if params["text_scale"] <= 1:
        return (MAIN,)
    return (MAIN, TEXT, IMAGE) if params["img_scale"] > 1 else (MAIN, TEXT)


@dataclass(slots=True)
class Contexts:
    """One request's contexts on one node.

    `kept` are those that the node is responsible for, `positions` the counters of those that are sequences of their
    own by now.
    """

    kept: tuple[str, ...]
    positions: dict[str, int] = field(default_factory=dict)

    @classmethod
    def begin(cls, held: Sequence[str], params: Mapping[str, Any]) -> Contexts:
        """Those of a new request on a node that holds `held`; without main there is nothing to be forked from."""
        kept = tuple(name for name in wanted(params) if name in held)
        return cls(kept, {name: 0 for name in kept if name == MAIN or MAIN not in held})

    def leaving(self, walk: str) -> tuple[str, ...]:
        """Contexts that main no longer stands for once the walk has run: they fork before."""
        lacks = _LACKS.get(walk, set())
        return tuple(name for name in self.kept if name in lacks and name not in self.positions)

    def reading(self, walk: str) -> tuple[str, ...]:
        """Sequences that the walk's tokens are appended to."""
        lacks = _LACKS.get(walk, set())
        return tuple(name for name in self.positions if name not in lacks)

    def settle(self, walk: str, advance: int) -> None:
        """The walk has run, and moved the counters of what it was appended to by `advance`."""
        reading = self.reading(walk)
        for name in self.leaving(walk):
            self.positions[name] = self.positions[MAIN]
        for name in reading:
            self.positions[name] += advance

    def painting(self, *, guided: bool) -> tuple[str, ...]:
        """Sequences that a step of denoising runs on."""
        return tuple(name for name in self.positions if guided or name == MAIN)
