"""The cross-entropy method (Rubinstein, 1999) over robot actions, as facebookresearch/vjepa2's `cem` has it. NumPy.

Four numbers per action are searched: x, y, z and the gripper; rotations stay 0. A refinement draws candidates from
normal distributions, and refits these to the candidates of lowest energy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstar_core.engines.random_numbers import stream_id, uniforms
from mstar_vjepa.world.config import AXES, SEARCHED

Floats = NDArray[np.float32]

_GRIPPER_LIMIT, _DEAD_ZONE = 0.75, 0.25
"""The most that a candidate moves the gripper, and the chosen movement below which it stays (the reference's)."""

_STREAM = stream_id("planner", "noise")


@dataclass(frozen=True, slots=True)
class Belief:
    """Means and deviations of the searched components, `[horizon, 4]` each."""

    mean: Floats
    std: Floats


def first_belief(params: Mapping[str, Any]) -> Belief:
    """What is believed before anything was tried: no movement, or the fixed values; as wide as actions may be."""
    horizon, reach = params["horizon"], params["maxnorm"]
    mean = np.zeros((horizon, SEARCHED), np.float32)
    for axis, value in _fixed(params).items():
        mean[:, axis] = value
    std = np.tile(np.array([reach, reach, reach, 1], np.float32), (horizon, 1))
    return Belief(mean, std)


def candidates(belief: Belief, noise: Floats, params: Mapping[str, Any]) -> Floats:
    """Actions `[samples, horizon, 7]` of standard normal draws `[horizon, samples, 4]`."""
    reach = params["maxnorm"]
    drawn = (noise * belief.std[:, None] + belief.mean[:, None]).swapaxes(0, 1)  # [samples, horizon, 4]
    drawn[..., :3] = np.clip(drawn[..., :3], -reach, reach)
    drawn[..., 3] = np.clip(drawn[..., 3], -_GRIPPER_LIMIT, _GRIPPER_LIMIT)
    for axis, value in _fixed(params).items():
        drawn[..., axis] = value
    if params["close_gripper"] is not None:
        drawn[:, params["close_gripper"] :, 3] = 1.0
    return _actions(drawn)


def refit(belief: Belief, tried: Floats, energies: Floats, params: Mapping[str, Any]) -> Belief:
    """The belief after trying actions `[samples, horizon, 7]` that came to `energies` `[samples]`.

    Mean and deviation (over n - 1) of the best, mixed with the former belief by the components' momenta.
    """
    best = tried[np.argsort(energies, kind="stable")[: params["topk"]]][..., [0, 1, 2, 6]]  # [topk, horizon, 4]
    mixed = []
    for name, old, new in (
        ("mean", belief.mean, best.mean(0)),
        ("std", belief.std, best.std(0, ddof=1)),
    ):
        arm, gripper = params[f"momentum_{name}"], params[f"momentum_{name}_gripper"]
        keep = np.array([arm, arm, arm, gripper], np.float32)
        mixed.append((new * (1 - keep) + old * keep).astype(np.float32))
    return Belief(*mixed)


def decision(belief: Belief) -> Floats:
    """The actions `[horizon, 7]` that a belief comes down to: its means, the gripper still in its dead zone."""
    mean = belief.mean.copy()
    mean[np.abs(mean[:, 3]) < _DEAD_ZONE, 3] = 0
    return _actions(mean)


def draws(seed: int, refinement: int, horizon: int, samples: int) -> Floats:
    """Standard normal numbers `[horizon, samples, 4]` of a request's seed, by Box and Muller's transform (1958)."""
    pairs = horizon * samples * SEARCHED // 2
    numbers = uniforms([seed], _STREAM, [refinement], 2 * pairs)[0]
    radius, angle = np.sqrt(-2 * np.log1p(-numbers[:pairs])), 2 * np.pi * numbers[pairs:]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return normal.astype(np.float32).reshape(horizon, samples, SEARCHED)


def _fixed(params: Mapping[str, Any]) -> dict[int, float]:
    return {axis: params[name] for axis, name in enumerate(AXES) if params[name] is not None}


def _actions(searched: Floats) -> Floats:
    """`[..., 7]` from the searched components `[..., 4]`."""
    rotations = np.zeros((*searched.shape[:-1], 3), np.float32)
    return np.concatenate([searched[..., :3], rotations, searched[..., 3:]], axis=-1)
