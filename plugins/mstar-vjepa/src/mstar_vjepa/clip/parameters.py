"""What a client of `vjepa2` may set."""

from __future__ import annotations

from mstar_core.spec.params import Parameter
from mstar_vjepa.clip.config import ClipConfig

MOST_FRAMES = 512
"""Frames of a clip that are encoded: eight times those of the training; attention's cost grows with their square."""


def parameters(config: ClipConfig) -> tuple[Parameter, ...]:
    """The request parameters; only a checkpoint with a classifier can be asked to classify."""
    tasks = ("encode", "predict", *(("classify",) if config.head else ()))
    ours = (
        Parameter(
            name="task",
            kind="str",
            default="encode",
            choices=tasks,
            doc="encode: latents of the clip; predict: latents of masked tokens; classify: what is done in the clip.",
        ),
        Parameter(
            name="frames",
            kind="int",
            minimum=1,
            maximum=MOST_FRAMES,
            doc="Take so many frames of the clip, at equal distances; left out: all.",
        ),
    )
    if config.head is None:
        return ours
    labels = len(config.head.labels)
    return (
        *ours,
        Parameter(
            name="labels",
            kind="int",
            default=min(5, labels),
            minimum=1,
            maximum=labels,
            doc="How many labels the text lists, the likeliest first.",
        ),
    )
