"""The state machine: what is heard and seen, then the reply; speech beside it where it is wanted. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mstar_core.spec.machine import AT_MOST, RequestView, Start, Transition, WalkEnded
from mstar_qwen_omni.walks import TALKER, THINKER

_ASSISTANT_ROWS = 9
"""What the talker reads after the user's turns, before its first frame (`_get_talker_assistant_parts` of Qwen3-Omni in
Hugging Face transformers)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One walk of the thinker, and the numbers of the inputs that it takes, by name."""

    walk: str
    take: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """Where a request stands: the thinker's walks to come, whether it is spoken, whether anything was cut short, and
    which of thinker and vocoder are through."""

    left: tuple[Step, ...]
    spoken: bool
    cut: bool = False
    written: bool = False
    sounded: bool = False


class QwenOmniMachine:
    """hear and see, read, write; talker and vocoder start at once where audio is wanted, and not at all elsewhere.

    A request has ended when the reply is written and, if it is spoken, sounded. It ends as `length` when the text or
    the speech was cut short by `max_tokens` or `max_audio_frames`, else as `stop`.
    """

    def start(self, request: RequestView) -> Transition:
        """The first walk of each partition."""
        spoken = "audio" in request.outputs
        state = Reply(tuple(_thinking(request, spoken)), spoken)
        first = _next(state)
        speech = (Start("listen"), Start("sound")) if spoken else ()
        return replace(first, start=(*first.start, *speech))

    def advance(self, state: Reply, event: WalkEnded) -> Transition:
        """What follows a walk in its partition, or the end."""
        cut = state.cut or event.how == AT_MOST
        match event.walk:
            case "listen":
                return Transition(state=state, start=(Start("talk"),))
            case "talk":
                return Transition(state=replace(state, cut=cut), finish=(TALKER,))
            case "sound":
                return _ended(replace(state, sounded=True))
            case "read" | "read_aloud" if event.flags["stop"]:
                return self._written(state)
            case "write":
                return self._written(replace(state, cut=cut))
        return _next(state)

    def demand(self, request: RequestView) -> Mapping[str, int]:
        """The prompt and all that may follow it; for the talker, as if all of the prompt were the user's."""
        tokens = request.inputs["ids"][0].shape[0]
        demand = {"thinker": tokens + request.params["max_tokens"]}
        if "audio" in request.outputs:
            demand["talker"] = tokens + _ASSISTANT_ROWS + request.params["max_audio_frames"]
        return demand

    def _written(self, state: Reply) -> Transition:
        written = replace(state, left=(), written=True)
        if not state.spoken:
            return _ended(replace(written, sounded=True))
        return replace(_ended(written), finish=(THINKER,))


def _thinking(request: RequestView, spoken: bool) -> Iterator[Step]:
    for clip in range(_pairs(request, "clips", "widths")):
        yield Step("hear", (("clips", clip), ("widths", clip)))
    for picture in range(_pairs(request, "pictures", "grids")):
        yield Step("see", (("pictures", picture), ("grids", picture)))
    yield Step("read_aloud" if spoken else "read")
    yield Step("write")


def _pairs(request: RequestView, *names: str) -> int:
    return min(len(request.inputs.get(name, ())) for name in names)


def _next(state: Reply) -> Transition:
    step = state.left[0]
    return Transition(state=replace(state, left=state.left[1:]), start=(Start(step.walk, dict(step.take)),))


def _ended(state: Reply) -> Transition:
    """The end once all is written and sounded; until then nothing."""
    if not (state.written and state.sounded):
        return Transition(state=state)
    return Transition(state=state, end="length" if state.cut else "stop")
