import pytest

from mstar_core.spec.machine import InputShape, RequestView, Start, Transition
from mstar_core.spec.transitions import check_transition

VIEW = RequestView(params={}, inputs={"prompt": (InputShape("int64", (3,)),)})


@pytest.fixture
def check(toy):
    """Checks a transition of the toy model's machine while the given walks run."""
    return lambda transition, *running: check_transition(transition, VIEW, running, toy.model())


def test_walks_of_idle_partitions_may_start(check):
    check(Transition(state=0, start=(Start("read", {"prompt": 0}), Start("speak"))))
    check(Transition(state=0, start=(Start("write"),)), "speak")


def test_a_partition_may_finish_while_another_one_runs(check):
    check(Transition(state=0, finish=("writing",)), "speak")


def test_a_request_may_end_once_nothing_runs(check):
    check(Transition(state=0, end="stop"))


def test_a_walk_does_not_start_in_a_partition_that_is_busy(check):
    with pytest.raises(ValueError, match="walk 'write' while 'read' is running in the same partition 'writing'"):
        check(Transition(state=0, start=(Start("write"),)), "read")


def test_two_walks_of_one_partition_do_not_start_at_once(check):
    with pytest.raises(ValueError, match="walk 'write' while 'read' is running"):
        check(Transition(state=0, start=(Start("read"), Start("write"))))


def test_an_end_beside_a_start_is_refused(check):
    with pytest.raises(ValueError, match="ended the request with 'stop' while walk 'read' is running"):
        check(Transition(state=0, start=(Start("read"),), end="stop"))


def test_a_request_that_would_stand_still_is_refused(check):
    with pytest.raises(ValueError, match="the request is stuck"):
        check(Transition(state=0, finish=("writing",)))


@pytest.mark.parametrize("index", [-1, 1])
def test_a_tensor_that_the_request_did_not_bring_cannot_be_taken(check, index):
    with pytest.raises(ValueError, match=f"input 'prompt' number {index}; the request brought 1"):
        check(Transition(state=0, start=(Start("read", {"prompt": index}),)))
