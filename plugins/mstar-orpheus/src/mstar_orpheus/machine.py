"""The state machine: segments of text one after the other, the codec beside them, the end when all is sounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mstar_core.spec.machine import AT_MOST, RequestView, Start, Transition, WalkEnded


@dataclass(frozen=True, slots=True)
class SpeechState:
    """Which segment is spoken, of how many, and whether any was cut short by `max_tokens`."""

    segment: int
    segments: int
    cut: bool = False


class OrpheusMachine:
    """prefill and decode for every segment; then `speech` is finished, and the request ends with the codec."""

    def start(self, request: RequestView) -> Transition:
        """The first segment, and the codec that waits for its frames."""
        state = SpeechState(0, len(request.inputs["prompt"]))
        return Transition(state=state, start=(Start("prefill", {"prompt": 0}), Start("vocode")))

    def advance(self, state: SpeechState, event: WalkEnded) -> Transition:
        """Decode after prefill (unless the first id was the end), the next segment after decode."""
        match event.walk:
            case "prefill" if not event.flags["stop"]:
                return Transition(state=state, start=(Start("decode"),))
            case "prefill":
                return self._next(state)
            case "decode":
                return self._next(replace(state, cut=state.cut or event.how == AT_MOST))
        return Transition(state=state, end="length" if state.cut else "stop")

    def demand(self, request: RequestView) -> Mapping[str, int]:
        """The longest prompt with all the ids that may follow it."""
        longest = max(shape.shape[0] for shape in request.inputs["prompt"])
        return {"lm": longest + request.params["max_tokens"]}

    def _next(self, state: SpeechState) -> Transition:
        following = replace(state, segment=state.segment + 1)
        if following.segment == state.segments:
            return Transition(state=following, finish=("speech",))
        return Transition(state=following, start=(Start("prefill", {"prompt": following.segment}),))
