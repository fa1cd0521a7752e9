import pytest

from mstar_core.client.service import Service
from mstar_core.errors import NodeFailed
from mstar_core.spec.content import Text
from mstar_core.spec.placement import Placement
from mstar_core.testing import counting
from mstar_core.testing.plugins import registry_with


@pytest.fixture(params=[True, False], ids=["ahead", "in-step"])
def service(request):
    placement = Placement(run_ahead=request.param)
    with Service.start(["counting"], registry=registry_with(counting), placement=placement) as service:
        counting.RECORD.values.clear()
        counting.RECORD.dropped = 0
        yield service


def counted(service, **params):
    ticket = service.submit("counting", [Text("go")], params)
    return [int(content.array) for content in ticket], ticket.end


@pytest.mark.parametrize("rounds", [1, 2, 3, 49])
def test_a_fixed_loop_runs_exactly_as_often_as_it_says(service, rounds):
    outputs, end = counted(service, walk="fixed", rounds=rounds, seed=1)
    assert outputs == [rounds]
    assert counting.RECORD.values[1] == list(range(1, rounds + 1))
    assert counting.RECORD.dropped == 0
    assert end.reason == "done"


@pytest.mark.parametrize("stop_at", [1, 2, 7])
def test_after_the_stop_signal_no_further_run_has_an_effect(service, stop_at):
    outputs, end = counted(service, walk="dynamic", rounds=100, stop_at=stop_at, seed=2)
    assert outputs == [stop_at]
    assert counting.RECORD.values[2] == list(range(1, stop_at + 1))
    assert end.reason == "until"


def test_a_dynamic_loop_that_reaches_its_bound_says_so(service):
    outputs, end = counted(service, walk="dynamic", rounds=5, seed=3)
    assert (outputs, end.reason) == ([5], "at_most")


def test_a_loop_that_emits_sends_every_round_once(service):
    outputs, _ = counted(service, walk="emitting", rounds=50, stop_at=20, seed=4)
    assert outputs == list(range(1, 21))


def test_loops_of_different_lengths_in_one_batch_do_not_disturb_each_other(service):
    tickets = {
        seed: service.submit(
            "counting", [Text("go")], {"walk": "dynamic", "rounds": 200, "stop_at": seed, "seed": seed}
        )
        for seed in range(1, 33)
    }
    assert {seed: [int(content.array) for content in ticket] for seed, ticket in tickets.items()} == {
        seed: [seed] for seed in range(1, 33)
    }
    assert all(counting.RECORD.values[seed] == list(range(1, seed + 1)) for seed in tickets)


def test_a_failing_batch_is_retried_call_by_call_and_only_the_culprit_fails(service, caplog):
    good = [
        service.submit("counting", [Text("go")], {"walk": "dynamic", "rounds": 30, "seed": seed})
        for seed in range(10, 18)
    ]
    bad = service.submit("counting", [Text("go")], {"walk": "dynamic", "rounds": 30, "fail_at": 11, "seed": 99})
    with pytest.raises(NodeFailed, match="node 'count' failed in walk 'dynamic'"):
        list(bad)
    assert [[int(content.array) for content in ticket] for ticket in good] == [[30]] * 8
    assert all(counting.RECORD.values[seed] == list(range(1, 31)) for seed in range(10, 18))
    assert counting.RECORD.values[99] == list(range(1, 12))
