"""Poses of the robot's hand and how an action changes them (facebookresearch/vjepa2, `app/vjepa_droid`). NumPy.

A pose has seven numbers: x, y, z in metres, three Euler angles in radians about the base's fixed axes x, y, z in that
order, and how far the gripper is closed (0 to 1). An action is a change of a pose in the same terms; its rotation acts
after the pose's, in the base frame. Rotations are composed in double precision, poses kept in single.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Poses = NDArray[np.float32]


def compose(pose: Poses, action: Poses) -> Poses:
    """The pose after an action, `[..., 7]` each."""
    turned = _matrix(action[..., 3:6]) @ _matrix(pose[..., 3:6])
    gripper = np.clip(pose[..., 6:] + action[..., 6:], 0, 1)
    return np.concatenate([pose[..., :3] + action[..., :3], _angles(turned), gripper], axis=-1, dtype=np.float32)


def follow(start: Poses, actions: Poses) -> Poses:
    """Poses `[..., steps + 1, 7]` from a start `[..., 7]` on, through actions `[..., steps, 7]`."""
    poses = [np.broadcast_to(start, (*actions.shape[:-2], 7))]
    for step in range(actions.shape[-2]):
        poses.append(compose(poses[-1], actions[..., step, :]))
    return np.stack(poses, axis=-2)


def difference(start: Poses, end: Poses) -> NDArray[np.float64]:
    """The action that leads from one pose to another, `[..., 7]`, double as the reference's."""
    turned = _matrix(end[..., 3:6]) @ np.swapaxes(_matrix(start[..., 3:6]), -1, -2)
    moved = end.astype(np.float64) - start
    return np.concatenate([moved[..., :3], _angles(turned), moved[..., 6:]], axis=-1)


def _matrix(angles: Poses) -> NDArray[np.float64]:
    """Rotation matrices `[..., 3, 3]`: about x, then y, then z, all fixed."""
    cos, sin = (
        np.moveaxis(np.cos(angles, dtype=np.float64), -1, 0),
        np.moveaxis(np.sin(angles, dtype=np.float64), -1, 0),
    )
    (ca, cb, cc), (sa, sb, sc) = cos, sin
    rows = [
        [cb * cc, sa * sb * cc - ca * sc, ca * sb * cc + sa * sc],
        [cb * sc, sa * sb * sc + ca * cc, ca * sb * sc - sa * cc],
        [-sb, sa * cb, ca * cb],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _angles(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Euler angles `[..., 3]` of rotation matrices; the second lies within a quarter turn."""
    roll = np.arctan2(matrix[..., 2, 1], matrix[..., 2, 2])
    pitch = np.arctan2(-matrix[..., 2, 0], np.hypot(matrix[..., 2, 1], matrix[..., 2, 2]))
    yaw = np.arctan2(matrix[..., 1, 0], matrix[..., 0, 0])
    return np.stack([roll, pitch, yaw], axis=-1)
