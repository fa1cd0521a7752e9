import numpy as np
import pytest
from mstar_vjepa.world.cem import candidates, decision, first_belief, refit
from mstar_vjepa.world.config import AXES

from mstar_core.spec.content import Tensor

pytestmark = pytest.mark.golden


def parameters(case):
    """A case's settings under this plugin's names."""
    fixed = {AXES[int(axis)]: value for axis, value in case.params.get("axis", {}).items()}
    names = ("samples", "topk", "maxnorm", "close_gripper")
    same = {name: value for name, value in case.params.items() if name in names or name.startswith("momentum_")}
    renamed = {"horizon": case.params["rollout"], "refinements": case.params["cem_steps"]}
    return {name: value for name, value in (same | renamed | fixed).items() if value is not None}


def test_the_planner_tries_scores_and_chooses_what_the_reference_does(plan_case, served, ask):
    service = served("vjepa2-ac", plan_case.directory)
    content = [
        Tensor("latents", plan_case.given("z")),
        Tensor("goal_latents", plan_case.given("z_goal")),
        Tensor("states", plan_case.given("pose")[0]),
        Tensor("noise", plan_case.given("noise")),
    ]
    made = ask(service, content, task="plan", **parameters(plan_case))
    plan_case.check(made["energies"], "energy")
    best = np.argsort(made["energies"], axis=1, kind="stable")[:, : plan_case.params["topk"]]
    np.testing.assert_array_equal(np.sort(best), np.sort(plan_case.wanted("topk_indices")))
    plan_case.check(made["actions"][0], "chosen_action")


def test_every_refinement_draws_and_believes_what_the_reference_does(plan_case):
    settings = {"close_gripper": None, **dict.fromkeys(AXES), **parameters(plan_case)}
    belief = first_belief(settings)
    for index, noise in enumerate(plan_case.given("noise")):
        plan_case.check(belief.mean, "mean", index)
        plan_case.check(belief.std, "std", index)
        tried = candidates(belief, noise, settings)
        plan_case.check(tried, "actions", index)
        belief = refit(belief, tried, plan_case.wanted("energy")[index], settings)
    plan_case.check(belief.mean, "mean", -1)
    plan_case.check(decision(belief), "chosen_action")
