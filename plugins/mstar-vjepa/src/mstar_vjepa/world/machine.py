"""The state machine of `vjepa2-ac`: what a request brings says which walks it takes, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mstar_core.spec.machine import AT_MOST, RequestView, Start, Transition, WalkEnded


@dataclass(frozen=True, slots=True)
class Course:
    """The walks that are still to come, and whether a rollout that runs out of actions was cut short."""

    left: tuple[str, ...]
    cut: bool


class WorldMachine:
    """See, observe, then roll out or plan; frames alone are only encoded.

    `slot` is the number of tokens that a frame takes up in the cache.
    """

    def __init__(self, slot: int) -> None:
        self._slot = slot

    def start(self, request: RequestView) -> Transition:
        """The first walk of those that the request takes."""
        walks = _walks(request)
        return _to(walks[0], Course(walks[1:], cut=request.params["stop_energy"] is not None))

    def advance(self, state: Course, event: WalkEnded) -> Transition:
        """The next walk, or the end."""
        if state.left:
            return _to(state.left[0], Course(state.left[1:], state.cut))
        cut = state.cut and event.walk == "rollout" and event.how == AT_MOST
        return Transition(state=state, end="length" if cut else "stop")

    def demand(self, request: RequestView) -> Mapping[str, int]:
        """Every slot of every rollout, and the observed ones that they share."""
        params = request.params
        slots = sum(shape.shape[1] for shape in request.inputs.get("past", ()))
        if request.inputs.get("pose"):
            slots += params["samples"] * params["horizon"]
        elif request.inputs.get("conditions"):
            slots += request.inputs["conditions"][0].shape[0] * params["horizon"]
        return {"world": slots * self._slot} if slots else {}


def _to(walk: str, state: Course) -> Transition:
    return Transition(state=state, start=(Start(walk),))


def _walks(request: RequestView) -> tuple[str, ...]:
    """A request to plan brings a pose, one for a rollout what it does from there on."""
    brought = {name for name, shapes in request.inputs.items() if shapes}
    if not brought & {"pose", "conditions"}:
        return ("encode",)
    before = ("see", *(("see_goal",) * ("goal_frames" in brought)), *(("observe",) * ("past" in brought)))
    if "pose" not in brought:
        return (*before, "rollout")
    return (*before, "plan", *(("imagine",) * request.params["imagine"]))
