import pytest
from mstar_vjepa.world.machine import WorldMachine

from mstar_core.spec.machine import AT_MOST, DONE, UNTIL, InputShape, RequestView, WalkEnded

PARAMS = {"horizon": 4, "samples": 10, "imagine": False, "stop_energy": None}


def request(params=None, **shapes):
    inputs = {name: (InputShape("float32", shape),) for name, shape in shapes.items()}
    return RequestView(params=PARAMS | (params or {}), inputs=inputs)


def course(view, last=DONE):
    """The walks that a request takes and how it ends, when its last walk ends by `last`."""
    machine = WorldMachine(slot=11)
    said, walks = machine.start(view), []
    while said.end is None:
        walks.append(said.start[0].walk)
        how = last if not said.state.left else DONE
        said = machine.advance(said.state, WalkEnded(walk=walks[-1], how=how))
    return walks, said.end


FRAMES = {"frames": (2, 9, 64)}
ROLLOUT = {"conditions": (1, 4, 14), "states": (1, 5, 7)}


@pytest.mark.parametrize(
    ("shapes", "params", "walks"),
    [
        ({}, {}, ["encode"]),
        (ROLLOUT, {}, ["see", "rollout"]),
        (ROLLOUT | {"goal_frames": (1, 9, 64), "past": (1, 1, 14)}, {}, ["see", "see_goal", "observe", "rollout"]),
        ({"pose": (7,), "goal_frames": (1, 9, 64)}, {}, ["see", "see_goal", "plan"]),
        ({"pose": (7,), "goal_frames": (1, 9, 64)}, {"imagine": True}, ["see", "see_goal", "plan", "imagine"]),
    ],
)
def test_what_a_request_brings_says_which_walks_it_takes(shapes, params, walks):
    assert course(request(params, **FRAMES, **shapes)) == (walks, "stop")


@pytest.mark.parametrize(("how", "end"), [(UNTIL, "stop"), (AT_MOST, "length")])
def test_a_rollout_that_was_to_reach_something_says_whether_it_did(how, end):
    assert course(request({"stop_energy": 0.1}, **FRAMES, **ROLLOUT), last=how)[1] == end


def test_a_rollout_without_such_a_wish_is_complete_after_its_actions():
    assert course(request(**FRAMES, **ROLLOUT), last=AT_MOST)[1] == "stop"


def test_demand_counts_every_slot_of_every_rollout():
    machine = WorldMachine(slot=11)
    assert machine.demand(request(**FRAMES)) == {}
    assert machine.demand(request(**FRAMES, conditions=(3, 4, 14), past=(1, 1, 14))) == {"world": (1 + 3 * 4) * 11}
    assert machine.demand(request(**FRAMES, pose=(7,))) == {"world": 10 * 4 * 11}
