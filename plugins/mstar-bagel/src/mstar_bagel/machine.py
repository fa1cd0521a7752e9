"""The state machine: what a request brings, in its order, becomes the course of its walks. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mstar_bagel.config import BagelConfig
from mstar_core.spec.machine import AT_MOST, InputShape, RequestView, Start, Transition, WalkEnded

_SEGMENT = 2
"""What encloses a segment: bos and eos, or the two markers of a picture."""


@dataclass(frozen=True, slots=True)
class Step:
    """One walk, and the numbers of the inputs that it takes, by name."""

    walk: str
    take: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Course:
    """The walks that are still to come."""

    left: tuple[Step, ...]


class BagelMachine:
    """A request for a picture ends with one; any other is answered in words."""

    def __init__(self, config: BagelConfig) -> None:
        self._config = config

    def start(self, request: RequestView) -> Transition:
        """The first walk of those that the request takes."""
        return _next(Course(tuple(_painting(request) if _paints(request) else _answering(request))))

    def advance(self, state: Course, event: WalkEnded) -> Transition:
        """The next walk, or the end."""
        if state.left:
            return _next(state)
        return Transition(state=state, end="length" if event.walk == "decode" and event.how == AT_MOST else "stop")

    def demand(self, request: RequestView) -> Mapping[str, int]:
        """The cache at its fullest: at the end of the text, or while the picture runs on all contexts."""
        params = request.params
        texts = sum(shape.shape[0] for shape in _texts(request))
        seen = sum(self._patches(shape) + _SEGMENT for shape in request.inputs["content"] if _is_picture(shape))
        if not _paints(request):
            return {"llm": texts + seen + (params["max_tokens"] or 0)}
        encoded = sum(self._latents(*shape.shape[:2]) + _SEGMENT for shape in request.inputs.get("pictures", ()))
        thought = (params["max_think_tokens"] or 0) + _SEGMENT if params["think"] else 0
        painted = self._latents(params["height"], params["width"]) + _SEGMENT
        pictures = seen + encoded
        return {
            "llm": 2 * texts + pictures + 2 * thought + 3 * painted,
            "llm_text": texts + pictures + painted,
            "llm_image": texts + painted,
        }

    def _patches(self, shape: InputShape) -> int:
        return int(shape.shape[0] * shape.shape[1] // self._config.vit.patch**2)

    def _latents(self, height: int | None, width: int | None) -> int:
        """Tokens of a picture; of the largest where no size is given."""
        longest = self._config.longest_side
        rows, columns = self._config.grid(height or longest, width or longest)
        return rows * columns


def _next(course: Course) -> Transition:
    step = course.left[0]
    return Transition(state=Course(course.left[1:]), start=(Start(step.walk, dict(step.take)),))


def _paints(request: RequestView) -> bool:
    return "image" in request.outputs


def _is_picture(shape: InputShape) -> bool:
    return len(shape.shape) == 3


def _texts(request: RequestView) -> Iterator[InputShape]:
    yield from (shape for shape in request.inputs["content"] if not _is_picture(shape))
    for name in ("think_to_answer", "think_to_paint"):
        yield from request.inputs.get(name, ())


def _answering(request: RequestView) -> Iterator[Step]:
    if request.inputs.get("think_to_answer"):
        yield Step("read_system")
    for place, shape in enumerate(request.inputs["content"]):
        yield Step("read_picture" if _is_picture(shape) else "read_text", (("content", place),))
    yield Step("decode")


def _painting(request: RequestView) -> Iterator[Step]:
    content = request.inputs["content"]
    if request.inputs.get("think_to_paint"):
        yield Step("prefill_system")
    picture = 0
    for place, shape in enumerate(content):
        if _is_picture(shape):
            yield from _showing(request, place, picture)
            picture += 1
        else:
            yield Step("prefill_prompt" if place == len(content) - 1 else "prefill_text", (("content", place),))
    if request.params["think"]:
        yield Step("think")
        yield Step("prefill_thought")
    yield Step("image_gen")


def _showing(request: RequestView, place: int, picture: int) -> Iterator[Step]:
    """A picture as the autoencoder sees it, then as the ViT does; one without the first view is only looked at."""
    if picture < len(request.inputs.get("pictures", ())):
        noise = (("posterior_noise", picture),) * (picture < len(request.inputs.get("posterior_noise", ())))
        yield Step("prefill_vae", (("pictures", picture), *noise))
    yield Step("prefill_vit", (("content", place),))
