import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mstar_vjepa.world.pose import compose, difference, follow

ANGLES = st.floats(-1.25, 1.25, width=32)
POSES = st.tuples(*[st.floats(-1, 1, width=32)] * 3, *[ANGLES] * 3, st.floats(0, 1, width=32)).map(
    lambda numbers: np.array(numbers, np.float32)
)


@settings(deadline=None)
@given(POSES, POSES)
def test_the_difference_leads_from_one_pose_to_the_other(start, end):
    reached = compose(start, difference(start, end).astype(np.float32))
    np.testing.assert_allclose(reached, end, atol=2e-4)


@settings(deadline=None)
@given(POSES)
def test_no_action_changes_nothing(pose):
    np.testing.assert_allclose(compose(pose, np.zeros(7, np.float32)), pose, atol=1e-6)


def test_the_gripper_stays_within_its_range():
    pose, action = np.zeros(7, np.float32), np.zeros(7, np.float32)
    pose[6], action[6] = 0.6, 0.7
    assert compose(pose, action)[6] == 1
    assert compose(pose, -action)[6] == 0


def test_a_rotation_acts_in_the_base_frame():
    quarter = np.float32(np.pi / 2)
    rolled, turned = np.zeros(7, np.float32), np.zeros(7, np.float32)
    rolled[3], turned[5] = quarter, quarter
    # A roll followed by a turn about the base's vertical: the hand's own x axis now points along y.
    np.testing.assert_allclose(compose(rolled, turned)[3:6], [quarter, 0, quarter], atol=1e-6)


@settings(deadline=None)
@given(POSES, st.lists(POSES, min_size=1, max_size=4))
def test_following_actions_is_composing_them_one_by_one(start, actions):
    poses = follow(start, np.stack(actions))
    np.testing.assert_array_equal(poses[0], start)
    for step, action in enumerate(actions):
        np.testing.assert_array_equal(poses[step + 1], compose(poses[step], action))
