import numpy as np
import pytest
from mstar_vjepa.world.cem import candidates, decision, draws, first_belief, refit
from mstar_vjepa.world.config import AXES

PARAMS = {"horizon": 3, "samples": 20, "topk": 5, "maxnorm": 0.05, "close_gripper": None, **dict.fromkeys(AXES)}
PARAMS |= dict.fromkeys(("momentum_mean", "momentum_std", "momentum_mean_gripper", "momentum_std_gripper"), 0.15)


def test_candidates_stay_within_their_limits_and_never_rotate():
    tried = candidates(first_belief(PARAMS), 10 * draws(1, 0, 3, 20), PARAMS)
    assert tried.shape == (20, 3, 7)
    assert np.abs(tried[..., :3]).max() == np.float32(0.05)
    assert np.abs(tried[..., 6]).max() == 0.75
    assert (tried[..., 3:6] == 0).all()


def test_fixed_components_are_not_clipped_and_the_gripper_closes_when_told():
    params = PARAMS | {"fixed_z": -0.3, "close_gripper": 1}
    tried = candidates(first_belief(params), draws(1, 0, 3, 20), params)
    assert (tried[..., 2] == np.float32(-0.3)).all()
    assert (tried[:, 1:, 6] == 1).all()
    assert (np.abs(tried[:, 0, 6]) <= 0.75).all()


def test_a_belief_moves_to_the_best_candidates():
    belief = first_belief(PARAMS)
    tried = candidates(belief, draws(2, 0, 3, 20), PARAMS)
    energies = np.abs(tried[:, 0, 0] - 0.04)
    moved = refit(belief, tried, energies, PARAMS)
    assert moved.mean[0, 0] > 0.015
    assert moved.std[0, 0] < belief.std[0, 0]


def test_a_small_gripper_movement_is_none():
    belief = first_belief(PARAMS)
    belief.mean[:, 3] = [0.2, -0.24, 0.3]
    np.testing.assert_array_equal(decision(belief)[:, 6], np.array([0, 0, 0.3], np.float32))


def test_draws_are_standard_normal_and_their_own_for_each_seed_and_refinement():
    many = draws(7, 0, 50, 2000)
    assert abs(many.mean()) < 0.01
    assert abs(many.std() - 1) < 0.01
    np.testing.assert_array_equal(draws(7, 0, 2, 3), draws(7, 0, 2, 3))
    assert not (draws(7, 0, 2, 3) == draws(7, 1, 2, 3)).any()
    assert not (draws(7, 0, 2, 3) == draws(8, 0, 2, 3)).any()


@pytest.mark.parametrize("samples", [2, 3, 7])
def test_draws_come_in_the_shape_that_is_asked_for(samples):
    assert draws(0, 0, 1, samples).shape == (1, samples, 4)
