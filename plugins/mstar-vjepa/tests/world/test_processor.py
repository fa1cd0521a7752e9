import dataclasses

import numpy as np
import pytest
from mstar_vjepa.world.config import MOST_SLOTS, WorldConfig
from mstar_vjepa.world.parameters import parameters
from mstar_vjepa.world.pose import follow
from mstar_vjepa.world.processor import WorldProcessor

from mstar_core.errors import InvalidRequest
from mstar_core.plugins.assemble import locate
from mstar_core.spec.content import Audio, Image, Tensor, Text, Video
from mstar_core.spec.params import check_parameters

RANDOM = np.random.default_rng(0)
TOKENS, WIDTH = 36, 48


@pytest.fixture(scope="module")
def config(registry):
    return WorldConfig.read(locate(registry.card("vjepa2-ac")))


@pytest.fixture(scope="module")
def processor(config):
    return WorldProcessor(config)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def latents(frames=1):
    return Tensor("latents", normal(frames, TOKENS, WIDTH))


def states(count=1):
    return Tensor("states", normal(count, 7))


def actions(*shape):
    return Tensor("actions", normal(*shape, 7))


def prepare(processor, *content, **params):
    return processor.prepare(content, check_parameters(parameters(), params))


GOAL = Tensor("goal_latents", normal(TOKENS, WIDTH))


@pytest.mark.parametrize(
    "observed",
    [
        Image(np.zeros((50, 70, 3), np.uint8)),
        Video(np.zeros((1, 60, 64, 3), np.uint8), 4.0),
        Tensor("frames", np.zeros((50, 70, 3), np.uint8)),
        Tensor("pixels", np.zeros((3, 96, 96), np.float32)),
    ],
    ids=["image", "video", "frames", "pixels"],
)
def test_what_was_observed_may_come_in_any_form(processor, observed):
    prepared = prepare(processor, observed, states(), actions(2))
    assert prepared.inputs["frames"][0].shape == (1, 3, 96, 96)
    assert prepared.params["horizon"] == 2


@pytest.mark.parametrize(
    ("array", "form"),
    [
        (np.zeros((50, 70, 3), np.uint8), "frames"),
        (normal(3, 96, 96), "pixels"),
        (normal(1, 3, 96, 96), "pixels"),
        (normal(TOKENS, WIDTH), "latents"),
        (normal(1, TOKENS, WIDTH), "latents"),
    ],
)
def test_a_goal_without_a_form_is_taken_for_what_it_looks_like(processor, array, form):
    task = {"task": "plan"}
    (guessed,) = prepare(processor, latents(), states(), Tensor("goal", array), **task).inputs["goal_frames"]
    (told,) = prepare(processor, latents(), states(), Tensor(f"goal_{form}", array), **task).inputs["goal_frames"]
    np.testing.assert_array_equal(guessed, told)


def test_poses_are_composed_where_they_are_not_given(processor):
    start, moves = states(), actions(3)
    prepared = prepare(processor, latents(), start, moves)
    np.testing.assert_array_equal(prepared.inputs["states"][0][0], follow(start.array[0], moves.array))
    conditions = prepared.inputs["conditions"][0]
    np.testing.assert_array_equal(conditions[0, :, :7], moves.array)
    np.testing.assert_array_equal(conditions[0, :, 7:], prepared.inputs["states"][0][0, :-1])


def test_given_poses_are_taken_as_they_are(processor):
    given = states(3)
    prepared = prepare(processor, latents(), given, actions(3))
    np.testing.assert_array_equal(prepared.inputs["states"][0][0, :3], given.array)


def test_several_observed_frames_bring_their_past(processor):
    past = Tensor("past_actions", normal(2, 7))
    prepared = prepare(processor, latents(3), states(3), past, actions(2))
    assert prepared.inputs["past"][0].shape == (1, 2, 14)
    np.testing.assert_array_equal(prepared.inputs["past"][0][0, :, :7], past.array)


def test_rollouts_side_by_side_share_what_was_observed(processor):
    prepared = prepare(processor, latents(), states(), actions(5, 2))
    assert prepared.inputs["conditions"][0].shape == (5, 2, 14)
    assert prepared.inputs["states"][0].shape == (5, 3, 7)


def test_a_horizon_takes_the_first_of_the_actions(processor):
    prepared = prepare(processor, latents(), states(), actions(5), horizon=2)
    assert prepared.inputs["conditions"][0].shape == (1, 2, 14)


def with_nan(tensor):
    array = tensor.array.copy()
    array.flat[3] = np.nan
    return Tensor(tensor.name, array)


WRONG = {
    "nothing": ([], {}, "input", "nothing was observed"),
    "text": ([Text("go")], {}, "input", "holds text"),
    "audio": ([Audio(np.zeros(3, np.float32), 16000)], {}, "input", "holds audio"),
    "empty video": ([Video(np.zeros((0, 8, 8, 3), np.uint8), 4.0)], {}, "input", "none of them 0"),
    "two forms": ([latents(), Tensor("pixels", normal(3, 96, 96))], {}, "latents", "say the same thing"),
    "other resolution": ([Tensor("pixels", normal(3, 48, 48)), states(), actions(1)], {}, "pixels", "n, 3, 96, 96"),
    "other grid": ([Tensor("latents", normal(9, WIDTH)), states(), actions(1)], {}, "latents", "n, 36, 48"),
    "no states": ([latents(), actions(1)], {}, "states", "'states' is missing"),
    "no actions": ([latents(), states()], {}, "actions", "'actions' is missing"),
    "no steps": ([latents(), states(), actions(0)], {}, "actions", r"float32 \[n, 7\]; got float32 \[0, 7\]"),
    "narrow actions": ([latents(), states(), Tensor("actions", normal(2, 6))], {}, "actions", r"\[n, 7\]"),
    "nan action": ([latents(), states(), with_nan(actions(2))], {}, "actions", r"\[0, 3\] holds nan"),
    "nan state": ([latents(), with_nan(states()), actions(2)], {}, "states", "finite"),
    "text as actions": ([latents(), states(), Tensor("actions", np.array(["a"]))], {}, "actions", "must be float32"),
    "huge action": ([latents(), states(), Tensor("actions", np.full((1, 7), 1e300))], {}, "actions", "finite"),
    "few states": ([latents(2), states(1), actions(1)], {}, "states", "has 1 poses; 2 frames were observed"),
    "many states": ([latents(), states(4), actions(2)], {}, "states", "it must have 1 to 2"),
    "no past": ([latents(2), states(2), actions(1)], {}, "past_actions", "the 1 actions between the 2"),
    "no such past": (
        [latents(), states(), actions(1), Tensor("past_actions", normal(1, 7))],
        {},
        "past_actions",
        "one",
    ),
    "unread camera": ([latents(), states(), actions(1), Tensor("extrinsics", normal(6))], {}, "extrinsics", "not read"),
    "noise": ([latents(), states(), actions(1), Tensor("noise", normal(4))], {}, "noise", "not for task 'rollout'"),
    "unknown": ([latents(), states(), Tensor("action", normal(1, 7))], {}, "action", "did you mean 'actions'"),
    "twice": ([latents(), latents()], {}, "latents", "is there twice"),
    "short actions": ([latents(), states(), actions(2)], {"horizon": 3}, "horizon", "'actions' hold 2"),
    "no goal to stop at": ([latents(), states(), actions(2)], {"stop_energy": 0.1}, "stop_energy", "needs a goal"),
    "plan to nowhere": ([latents(), states()], {"task": "plan"}, "input", "a goal is missing"),
    "plan with actions": ([latents(), states(), GOAL, actions(1)], {"task": "plan"}, "actions", "not for task 'plan'"),
    "plan of poses": ([latents(), states(2), GOAL], {"task": "plan"}, "states", "a plan makes its own"),
    "keen plan": ([latents(), states(), GOAL], {"task": "plan", "samples": 5}, "topk", "at most 'samples', 5"),
    "wrong noise": (
        [latents(), states(), GOAL, Tensor("noise", normal(1, 2, 3, 4))],
        {"task": "plan"},
        "noise",
        r"\[10, 2, 400, 4\]",
    ),
    "two goals": ([latents(), states(), GOAL, Image(np.zeros((8, 8, 3), np.uint8))], {"task": "plan"}, "input", "one"),
    "a goal twice": (
        [latents(), states(), GOAL, Tensor("goal", GOAL.array)],
        {"task": "plan"},
        "goal_latents",
        "'goal' and 'goal_latents' say the same thing",
    ),
    "a goal that is none": ([latents(), states(), Tensor("goal", normal(3, 8, 8))], {"task": "plan"}, "goal", "36, 48"),
    "goal in motion": (
        [latents(), states(), Tensor("goal_latents", normal(2, TOKENS, WIDTH))],
        {"task": "plan"},
        "goal_latents",
        "must be one frame, got 2",
    ),
    "encode a goal": ([latents(), GOAL], {"task": "encode"}, "goal_latents", "not for task 'encode'"),
    "long past": (
        [latents(MOST_SLOTS), states(MOST_SLOTS), Tensor("past_actions", normal(MOST_SLOTS - 1, 7)), actions(2)],
        {},
        "horizon",
        f"a history of {MOST_SLOTS + 1} frames; at most {MOST_SLOTS}",
    ),
}


@pytest.mark.parametrize(("content", "params", "param", "problem"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_request_is_refused_with_the_field(processor, content, params, param, problem):
    with pytest.raises(InvalidRequest, match=problem) as caught:
        prepare(processor, *content, **params)
    assert caught.value.param == param


@pytest.mark.parametrize("horizon", [0, -1, 10**9])
def test_a_horizon_out_of_range_is_refused_with_the_range(horizon):
    with pytest.raises(InvalidRequest, match=f"at (least 1|most {MOST_SLOTS - 1}), got {horizon}") as caught:
        check_parameters(parameters(), {"horizon": horizon})
    assert caught.value.param == "horizon"


def test_a_checkpoint_that_reads_the_camera_needs_it(config):
    processor = WorldProcessor(dataclasses.replace(config, extrinsics=True))
    with pytest.raises(InvalidRequest, match="'extrinsics' is missing"):
        prepare(processor, latents(), states(), actions(2))
    camera = normal(6)
    prepared = prepare(processor, latents(), states(), actions(2), Tensor("extrinsics", camera))
    np.testing.assert_array_equal(prepared.inputs["conditions"][0][0, :, 14:], [camera, camera])
