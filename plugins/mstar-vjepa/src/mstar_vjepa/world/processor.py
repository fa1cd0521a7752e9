"""Requests of `vjepa2-ac`: pictures, poses and actions to tensors, and what was emitted to named tensors. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstar_core.errors import InvalidRequest
from mstar_core.spec.content import Content, Prepared
from mstar_vjepa.contents import Array, Contents, checked_numbers, sort_contents
from mstar_vjepa.world.config import ACTION, CAMERA, MOST_SLOTS, SEARCHED, WorldConfig
from mstar_vjepa.world.frames import FORMS, GOALS, FrameReader
from mstar_vjepa.world.parameters import PLAN_HORIZON
from mstar_vjepa.world.pose import compose
from mstar_vjepa.world.renderer import SEVERAL, WorldRenderer

Floats = NDArray[np.float32]

_MOTION = ("states", "past_actions", "actions", "extrinsics", "noise")

NAMES = (*FORMS, *GOALS, *_MOTION)
"""The tensors that a request may hold."""

_USED: Mapping[str, tuple[str, ...]] = {
    "encode": FORMS,
    "rollout": tuple(name for name in NAMES if name != "noise"),
    "plan": tuple(name for name in NAMES if name != "actions"),
}
"""The tensors that each task takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Motion:
    """What is known of the arm: poses `[n, 7]`, n at least `observed`; actions between observed frames; the camera."""

    observed: int
    states: Floats
    past_actions: Floats
    camera: Floats | None  # [slots, 6]

    def past(self) -> Floats:
        """Conditions `[1, observed - 1, n]` of the slots before the last observed one."""
        known = self.observed - 1
        parts = [self.past_actions, self.states[:known]]
        if self.camera is not None:
            parts.append(self.camera[:known])
        return np.concatenate(parts, axis=-1)[None]


class WorldProcessor:
    """Prepares and renders; made once per served model, in the frontend."""

    def __init__(self, config: WorldConfig) -> None:
        self._config = config
        self._frames = FrameReader(config)

    def prepare(self, content: Sequence[Content], params: Mapping[str, Any]) -> Prepared:
        """The tensors of a task; raises `InvalidRequest` naming the field."""
        contents = sort_contents(content, NAMES)
        self._check_use(contents, params["task"])
        frames, goal = self._frames.observed(contents), self._frames.goal(contents)
        if params["task"] == "encode":
            if goal is not None:
                raise InvalidRequest("'input' holds two clips; one is encoded at a time", param="input")
            return Prepared(inputs={"frames": [frames]}, params=params)
        inputs = {"frames": frames} if goal is None else {"frames": frames, "goal_frames": goal}
        prepare = self._rollout if params["task"] == "rollout" else self._plan
        more, horizon = prepare(contents, params, len(frames))
        _check_goal(goal, params)
        several = params["task"] == "rollout" and contents.tensors["actions"].ndim == 3
        checked = {**params, "horizon": horizon, SEVERAL: several}
        return Prepared(inputs={name: [each] for name, each in (inputs | more).items()}, params=checked)

    def render(self, prepared: Prepared) -> WorldRenderer:
        """A renderer for one request."""
        return WorldRenderer(prepared, self._config)

    def _check_use(self, contents: Contents, task: str) -> None:
        for name in contents.tensors:
            if name not in _USED[task]:
                raise InvalidRequest(f"{name!r} is not for task {task!r}", param=name)
            if name == "extrinsics" and not self._config.extrinsics:
                raise InvalidRequest("'extrinsics' are not read by this checkpoint", param=name)

    def _rollout(self, contents: Contents, params: Mapping[str, Any], observed: int) -> tuple[dict[str, Floats], int]:
        actions = _actions(_needed(contents, "actions"))  # [rollouts, steps, 7]
        horizon = params["horizon"] or actions.shape[1]
        if horizon > actions.shape[1]:
            raise InvalidRequest(f"'horizon' is {horizon}, but 'actions' hold {actions.shape[1]}", param="horizon")
        motion = self._motion(contents, observed, horizon)
        states = _poses(motion, actions[:, :horizon])
        parts = [actions[:, :horizon], states[:, :-1]]
        if motion.camera is not None:
            camera = motion.camera[observed - 1 :]
            parts.append(np.broadcast_to(camera, (len(actions), horizon, CAMERA)))
        inputs = {"conditions": np.concatenate(parts, axis=-1), "states": states}
        return inputs | _past(motion), horizon

    def _plan(self, contents: Contents, params: Mapping[str, Any], observed: int) -> tuple[dict[str, Floats], int]:
        horizon = params["horizon"] or PLAN_HORIZON
        motion = self._motion(contents, observed, horizon)
        if len(motion.states) > observed:
            raise InvalidRequest(
                f"'states' has {len(motion.states)} poses for {observed} observed frames; a plan makes its own",
                param="states",
            )
        if params["topk"] > params["samples"]:
            raise InvalidRequest(f"'topk' must be at most 'samples', {params['samples']}", param="topk")
        inputs = {"pose": motion.states[-1], **_past(motion)}
        if motion.camera is not None:
            inputs["camera"] = motion.camera[observed - 1 :]
        if "noise" in contents.tensors:
            shape = (params["refinements"], horizon, params["samples"], SEARCHED)
            inputs["noise"] = checked_numbers(contents.tensors["noise"], "noise", *shape)
        return inputs, horizon

    def _motion(self, contents: Contents, observed: int, horizon: int) -> _Motion:
        slots = observed - 1 + horizon
        if slots > MOST_SLOTS:
            raise InvalidRequest(
                f"{observed} observed frames and a horizon of {horizon} make a history of {slots} frames; "
                f"at most {MOST_SLOTS}",
                param="horizon",
            )
        return _Motion(
            observed=observed,
            states=_states(_needed(contents, "states"), observed, slots),
            past_actions=_past_actions(contents.tensors.get("past_actions"), observed),
            camera=_camera(_needed(contents, "extrinsics"), slots) if self._config.extrinsics else None,
        )


def _needed(contents: Contents, name: str) -> Array:
    if name not in contents.tensors:
        raise InvalidRequest(f"tensor {name!r} is missing", param=name)
    return contents.tensors[name]


def _check_goal(goal: Floats | None, params: Mapping[str, Any]) -> None:
    if goal is None and params["task"] == "plan":
        raise InvalidRequest("a goal is missing: give an image behind the observed frames", param="input")
    if goal is None and params["stop_energy"] is not None:
        raise InvalidRequest("'stop_energy' needs a goal: give an image behind the frames", param="stop_energy")


def _actions(array: Array) -> Floats:
    """`[rollouts, steps, 7]`."""
    if array.ndim == 3:
        return checked_numbers(array, "actions", None, None, ACTION)
    return checked_numbers(array, "actions", None, ACTION)[None]


def _states(array: Array, observed: int, slots: int) -> Floats:
    """Poses `[n, 7]` for every observed frame, or for more of the history's."""
    states = checked_numbers(array[None] if array.ndim == 1 else array, "states", None, ACTION)
    if not observed <= len(states) <= slots:
        most = f" to {slots}" if slots > observed else ""
        raise InvalidRequest(
            f"'states' has {len(states)} poses; {observed} frames were observed, so it must have {observed}{most}",
            param="states",
        )
    return states


def _past_actions(array: Array | None, observed: int) -> Floats:
    if array is None and observed > 1:
        raise InvalidRequest(
            f"tensor 'past_actions' is missing: the {observed - 1} actions between the {observed} observed frames",
            param="past_actions",
        )
    if array is None or (observed == 1 and not array.size):
        return np.empty((0, ACTION), np.float32)
    if observed == 1:
        raise InvalidRequest("'past_actions' lie between observed frames; there is one frame", param="past_actions")
    return checked_numbers(array, "past_actions", observed - 1, ACTION)


def _camera(array: Array, slots: int) -> Floats:
    """`[slots, 6]`; one for all where the camera stands still."""
    if array.ndim == 1:
        return np.tile(checked_numbers(array, "extrinsics", CAMERA), (slots, 1))
    return checked_numbers(array, "extrinsics", slots, CAMERA)


def _poses(motion: _Motion, actions: Floats) -> Floats:
    """Poses `[rollouts, steps + 1, 7]` from the last observed one on: given ones as they are, others composed."""
    given = motion.states[motion.observed - 1 :]
    poses = [np.broadcast_to(given[0], (len(actions), ACTION))]
    for step in range(actions.shape[1]):
        if step + 1 < len(given):
            poses.append(np.broadcast_to(given[step + 1], poses[0].shape))
        else:
            poses.append(compose(poses[-1], actions[:, step]))
    return np.stack(poses, axis=1)


def _past(motion: _Motion) -> dict[str, Floats]:
    return {"past": motion.past()} if motion.observed > 1 else {}
