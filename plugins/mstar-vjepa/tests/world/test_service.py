import numpy as np
import pytest

from mstar_core.errors import InvalidRequest
from mstar_core.spec.content import Image, Tensor
from mstar_core.spec.placement import Placement
from mstar_core.testing.serving import eventually

MODEL = "vjepa2-ac"
TOKENS, WIDTH, SLOT = 36, 48, 38
RANDOM = np.random.default_rng(0)

TWO_WORKERS = Placement.model_validate(
    {
        "workers": {"first": {"device": "cpu", "threads": 1}, "second": {"device": "cpu", "threads": 1}},
        "groups": [{"nodes": ["encoder", "refit"], "worker": "second"}],
    }
)


def small(tokens):
    return Placement.model_validate({"groups": [{"nodes": ["world"], "kv": {"tokens": tokens, "page": 16}}]})


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def scene(frames=1):
    past = [Tensor("past_actions", normal(frames - 1, 7))] if frames > 1 else []
    return [Tensor("latents", normal(frames, TOKENS, WIDTH)), Tensor("states", normal(frames, 7)), *past]


def rolled(horizon, frames=1):
    return [*scene(frames), Tensor("actions", 0.1 * normal(horizon, 7))]


PLAN = {"task": "plan", "samples": 12, "topk": 4, "refinements": 2, "horizon": 2, "seed": 5, "imagine": True}


def aimed(frames=1):
    return [*scene(frames), Tensor("goal_latents", normal(TOKENS, WIDTH))]


@pytest.fixture(scope="module")
def service(served):
    return served(MODEL)


def same(left, right):
    assert left.keys() == right.keys()
    for name in left.keys() - {"end"}:
        assert [each.tobytes() for each in left[name]] == [each.tobytes() for each in right[name]], name


def test_a_rollout_step_by_step_is_the_whole_history_computed_anew(service, ask):
    content = rolled(4)
    start, first, actions = (piece.array for piece in content)
    made = ask(service, content)
    frames, states = [start[0], *made["latents"]], [first[0], *made["states"]]
    for step in range(1, 4):
        again = [
            Tensor("latents", np.stack(frames[: step + 1])),
            Tensor("states", np.stack(states[: step + 1])),
            Tensor("past_actions", actions[:step]),
            Tensor("actions", actions[step : step + 1]),
        ]
        np.testing.assert_allclose(ask(service, again)["latents"][0], frames[step + 1], atol=2e-5)


def test_rollouts_of_different_horizons_together_are_bit_for_bit_those_alone(service, ask, collect):
    contents = [rolled(2), rolled(7), rolled(5, frames=3), rolled(7)]
    alone = [ask(service, content) for content in contents]
    tickets = [service.submit(MODEL, content, {}) for content in contents]
    for expected, ticket in zip(alone, tickets, strict=True):
        same(collect(ticket), expected)


def test_a_plan_beside_rollouts_is_bit_for_bit_the_plan_alone(service, ask, collect):
    content = aimed(frames=2)
    alone = ask(service, content, **PLAN)
    tickets = [service.submit(MODEL, rolled(9), {}) for _ in range(3)]
    tickets.insert(1, service.submit(MODEL, content, PLAN))
    made = [collect(ticket) for ticket in tickets]
    same(made[1], alone)


def test_a_plan_cut_into_many_batches_is_the_same_plan(service, serve, ask):
    content = aimed()
    narrow = Placement.model_validate({"groups": [{"nodes": ["world"], "batch": {"tokens": 4 * SLOT}}]})
    with serve(MODEL, placement=narrow) as other:
        same(ask(other, content, **PLAN), ask(service, content, **PLAN))


def test_rollouts_side_by_side_are_those_one_by_one(service, ask):
    observed = scene(frames=2)
    actions = 0.1 * normal(3, 4, 7)
    together = ask(service, [*observed, Tensor("actions", actions)])
    for row in range(3):
        alone = ask(service, [*observed, Tensor("actions", actions[row])])
        assert [each[row].tobytes() for each in together["latents"]] == [each.tobytes() for each in alone["latents"]]
        assert [each[row].tobytes() for each in together["states"]] == [each.tobytes() for each in alone["states"]]


def test_two_workers_give_the_bytes_of_one(service, serve, ask):
    picture = Image(RANDOM.integers(0, 256, (80, 100, 3), np.uint8))
    rollout = [picture, Tensor("states", normal(7)), Tensor("actions", 0.1 * normal(3, 7)), picture]
    plan = aimed()
    with serve(MODEL, placement=TWO_WORKERS) as apart:
        same(ask(apart, rollout), ask(service, rollout))
        same(ask(apart, plan, **PLAN), ask(service, plan, **PLAN))


def test_a_plan_gives_energies_then_actions_and_what_they_lead_to(service, ask):
    made = ask(service, aimed(), **PLAN)
    assert [each.shape for each in made["energies"]] == [(12,), (12,), (), ()]
    assert made["actions"][0].shape == (2, 7)
    assert (made["actions"][0][:, 3:6] == 0).all()
    assert [each.shape for each in made["latents"]] == [(TOKENS, WIDTH)] * 2
    assert made["end"] == "stop"


def test_what_a_plan_imagines_is_a_rollout_of_its_actions(service, ask):
    content = aimed()
    plan = ask(service, content, **PLAN)
    rollout = ask(service, [*content, Tensor("actions", plan["actions"][0])])
    np.testing.assert_allclose(plan["latents"], rollout["latents"], atol=1e-6)
    np.testing.assert_allclose(plan["energies"][-2:], rollout["energies"], atol=1e-6)


def test_a_plan_gets_nearer_to_a_goal_that_can_be_reached(service, ask):
    observed = scene()
    goal = ask(service, [*observed, Tensor("actions", np.tile(np.float32([0.05, 0, -0.05, 0, 0, 0, 0]), (2, 1)))])
    content = [*observed, Tensor("goal_latents", goal["latents"][-1])]
    made = ask(service, content, task="plan", samples=64, refinements=4, horizon=2, seed=1)
    means = [float(np.mean(each)) for each in made["energies"]]
    assert means[-1] < 0.5 * means[0]


def test_the_same_seed_gives_the_same_plan_and_another_another(service, ask):
    content = aimed()
    plan = PLAN | {"imagine": False}
    same(ask(service, content, **plan), ask(service, content, **plan))
    assert (
        ask(service, content, **plan | {"seed": 6})["actions"][0].tobytes()
        != ask(service, content, **plan)["actions"][0].tobytes()
    )


def test_a_rollout_ends_when_it_is_near_enough(service, ask):
    content = rolled(5)
    third = ask(service, content)["latents"][2]
    goal = [*content, Tensor("goal_latents", third)]
    made = ask(service, goal, stop_energy=1e-5)
    assert len(made["latents"]) == 3
    assert made["end"] == "stop"
    assert len(made["energies"]) == 3
    assert ask(service, [*goal[:-1], Tensor("goal_latents", third + 1)], stop_energy=1e-5)["end"] == "length"


def test_frames_that_were_encoded_before_need_not_be_encoded_again(service, ask):
    picture = Image(RANDOM.integers(0, 256, (64, 64, 3), np.uint8))
    latents = ask(service, [picture], task="encode")["latents"][0]
    motion = [Tensor("states", normal(7)), Tensor("actions", 0.1 * normal(2, 7))]
    same(ask(service, [picture, *motion]), ask(service, [Tensor("latents", latents), *motion]))


def test_a_history_that_the_pool_cannot_hold_is_refused_with_the_numbers(serve, ask):
    with serve(MODEL, placement=small(320)) as service:
        assert len(ask(service, rolled(8))["latents"]) == 8
        with pytest.raises(InvalidRequest, match=r"up to 342 KV tokens .* its pool holds 320"):
            ask(service, rolled(9))


def test_a_history_beyond_the_references_mask_is_computed(service, ask):
    content = rolled(40)
    made = ask(service, content)
    assert len(made["latents"]) == 40
    assert np.isfinite(made["latents"][-1]).all()
    shorter = ask(service, content, horizon=33)
    assert made["latents"][32].tobytes() == shorter["latents"][32].tobytes()


def test_candidates_give_their_pages_back_after_each_refinement(serve, ask):
    with serve(MODEL, placement=small(12 * 2 * 48 + 64)) as service:
        made = ask(service, aimed(), **PLAN | {"refinements": 4})
        assert len(made["actions"]) == 1
        assert eventually(lambda: pages_used(service) == 0, 20.0)


def pages_used(service):
    return sum(sample.value for sample in service.metrics() if sample.name == "mstar_kv_pages_used")
