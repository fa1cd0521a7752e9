"""What a client of `vjepa2-ac` may set. The planner's defaults are those of the reference's `WorldModel`."""

from __future__ import annotations

from mstar_core.spec.params import Parameter
from mstar_vjepa.world.config import AXES, MOST_SLOTS

TASKS = ("rollout", "plan", "encode")

PLAN_HORIZON = 2
"""Actions that are planned where the request does not say (facebookresearch/vjepa2, `WorldModel`)."""

_MOST_SAMPLES, _MOST_REFINEMENTS = 4096, 1000
"""Ten times and a hundred times the reference's."""


def parameters() -> tuple[Parameter, ...]:
    """The request parameters."""
    return (
        Parameter(
            name="task",
            kind="str",
            default=TASKS[0],
            choices=TASKS,
            doc="rollout: predict what actions lead to; plan: find actions that lead to a goal; encode: frames alone.",
        ),
        Parameter(
            name="horizon",
            kind="int",
            minimum=1,
            maximum=MOST_SLOTS - 1,
            doc=f"How many actions; left out: all that are given, or {PLAN_HORIZON} to plan.",
        ),
        Parameter(
            name="stop_energy",
            kind="float",
            minimum=0,
            doc="End a rollout once the mean absolute difference to the goal is at most this.",
        ),
        *_planning(),
        *_momenta(),
        *(
            Parameter(name=name, kind="float", doc=f"The {name.removeprefix('fixed_')} of every planned action.")
            for name in AXES
        ),
        Parameter(name="imagine", kind="bool", default=False, doc="Also predict what the planned actions lead to."),
    )


def _planning() -> tuple[Parameter, ...]:
    return (
        Parameter(
            name="samples", kind="int", default=400, minimum=2, maximum=_MOST_SAMPLES, doc="Candidates per refinement."
        ),
        Parameter(
            name="topk",
            kind="int",
            default=10,
            minimum=2,
            maximum=_MOST_SAMPLES,
            doc="Candidates that a refinement learns from.",
        ),
        Parameter(
            name="refinements", kind="int", default=10, minimum=1, maximum=_MOST_REFINEMENTS, doc="How often to refine."
        ),
        Parameter(
            name="maxnorm",
            kind="float",
            default=0.05,
            exclusive_minimum=0,
            doc="The most that an action moves along an axis, in metres.",
        ),
        Parameter(
            name="close_gripper", kind="int", minimum=0, doc="From this action on all candidates close the gripper."
        ),
    )


def _momenta() -> tuple[Parameter, ...]:
    return tuple(
        Parameter(
            name=f"momentum_{of}{part}",
            kind="float",
            default=0.15,
            minimum=0,
            maximum=1,
            doc=f"How much of the {what} of the {where} a refinement keeps.",
        )
        for part, where in (("", "movement"), ("_gripper", "gripper"))
        for of, what in (("mean", "mean"), ("std", "deviation"))
    )
