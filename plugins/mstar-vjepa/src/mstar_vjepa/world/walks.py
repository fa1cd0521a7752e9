"""Nodes and walks of `vjepa2-ac`; the state machine puts the walks of a task in order.

see: frames -> latents          observe: the slots before the last observed frame -> cache
rollout: world*                 plan: (sample -> world* -> refit)* -> actions, and maybe `imagine`, a rollout of them
"""

from __future__ import annotations

from mstar_core.spec.graph import (
    FLAG,
    DynamicLoop,
    Element,
    Emit,
    Loop,
    Node,
    Param,
    Port,
    RequestInput,
    Run,
    Sequential,
    Walk,
    WalkSet,
)
from mstar_vjepa.world.config import ACTION, CAMERA, SEARCHED, WorldConfig

PARTITION = "world"


def nodes(config: WorldConfig) -> tuple[Node, ...]:
    """Encoder, world model and the two halves of the planner."""
    tokens, width = config.patches.tokens, config.encoder.hidden
    frames = ("frames", tokens, width)
    conditions = ("rollouts", "rounds", config.condition_width)
    poses = ("rollouts", "poses", ACTION)
    belief = ("horizon", SEARCHED)
    module = "mstar_vjepa.world"
    return (
        Node(
            name="encoder",
            engine="stateless",
            inputs=(Port("frames", "float32"),),
            outputs=(Port("latents", "float32", frames),),
            factory=f"{module}.encoder:FrameEncoder",
        ),
        Node(
            name="world",
            engine="kv_cache",
            inputs=(
                Port("latents", "float32", frames),
                Port("conditions", "float32", conditions),
                Port("states", "float32", poses, sparse=True),
                Port("goal", "float32", frames, sparse=True),
                Port("imagined", "float32", ("rollouts", tokens, width), sparse=True),
            ),
            outputs=(
                Port("imagined", "float32", ("rollouts", tokens, width), sparse=True),
                Port("states", "float32", ("rollouts", ACTION), sparse=True),
                Port("energies", "float32", ("rollouts",), sparse=True),
                Port("reached", FLAG, sparse=True),
            ),
            factory=f"{module}.model:WorldModel",
        ),
        Node(
            name="sample",
            engine="stateless",
            inputs=(
                Port("pose", "float32", (ACTION,)),
                Port("camera", "float32", ("rounds", CAMERA), sparse=True),
                Port("noise", "float32", ("refinements", "horizon", "samples", SEARCHED), sparse=True),
                Port("mean", "float32", belief, sparse=True),
                Port("std", "float32", belief, sparse=True),
            ),
            outputs=(
                Port("candidates", "float32", ("samples", "horizon", ACTION)),
                Port("conditions", "float32", conditions),
                Port("states", "float32", poses),
            ),
            factory=f"{module}.planner:Sampler",
        ),
        Node(
            name="refit",
            engine="stateless",
            inputs=(
                Port("pose", "float32", (ACTION,)),
                Port("camera", "float32", ("rounds", CAMERA), sparse=True),
                Port("candidates", "float32", ("samples", "horizon", ACTION)),
                Port("energies", "float32", ("samples",), sparse=True),
                Port("mean", "float32", belief, sparse=True),
                Port("std", "float32", belief, sparse=True),
            ),
            outputs=(
                Port("mean", "float32", belief),
                Port("std", "float32", belief),
                Port("actions", "float32", ("horizon", ACTION)),
                Port("conditions", "float32", conditions),
                Port("states", "float32", poses),
            ),
            factory=f"{module}.planner:Refitter",
        ),
    )


def walks(config: WorldConfig) -> WalkSet:
    """All walks; they share one partition, so that they share the frames' latents and the cache."""
    see = Run("encoder")
    see_goal = Run("encoder", inputs={"frames": "goal_frames"}, outputs={"latents": "goal"})
    tried = Run("sample", outputs={"conditions": "tried", "states": "tried_states"})
    learned = Run("refit", outputs={"conditions": "chosen", "states": "chosen_states"})
    attempts = Loop(_step("tried", "tried_states"), times=Param("horizon"))
    refinement = Sequential(tried, attempts, learned, Emit("energies", "tensor"))
    rolled = DynamicLoop(_shown(_step("conditions", "states")), at_most=Param("horizon"), until="reached")
    bodies: dict[str, Element] = {
        "encode": Sequential(see, Emit("latents", "tensor")),
        "see": see,
        "see_goal": see_goal,
        "observe": Run("world", inputs={"conditions": "past"}, outputs={"states": "state"}),
        "rollout": rolled,
        "plan": Sequential(Loop(refinement, times=Param("refinements")), Emit("actions", "tensor")),
        "imagine": Loop(_shown(_step("chosen", "chosen_states")), times=Param("horizon")),
    }
    numbers: dict[str, tuple[int | str, ...]] = {
        "conditions": ("rollouts", "rounds", config.condition_width),
        "states": ("rollouts", "poses", ACTION),
        "past": (1, "slots", config.condition_width),
        "pose": (ACTION,),
        "camera": ("rounds", CAMERA),
        "noise": ("refinements", "horizon", "samples", SEARCHED),
    }
    return WalkSet(
        walks=tuple(Walk(name=name, partition=PARTITION, body=body) for name, body in bodies.items()),
        inputs=(
            RequestInput(name="frames", dtype="float32", modality="image"),
            RequestInput(name="goal_frames", dtype="float32", modality="image", optional=True),
            *(RequestInput(name=name, dtype="float32", shape=shape, optional=True) for name, shape in numbers.items()),
        ),
    )


def _step(conditions: str, states: str) -> Run:
    """One slot more for every rollout; the pose after it has a name of its own."""
    return Run("world", inputs={"conditions": conditions, "states": states}, outputs={"states": "state"})


def _shown(step: Run) -> Sequential:
    """A step whose results go to the client as they are made, in the order that the renderer expects."""
    return Sequential(step, Emit("imagined", "tensor"), Emit("state", "tensor"), Emit("energies", "tensor"))
