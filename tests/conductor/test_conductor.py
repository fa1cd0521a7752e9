"""The Conductor on its own thread, with the test as its frontend and its worker."""

import re
import threading
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import zmq

from mstar_core.conductor.conductor import Conductor
from mstar_core.conductor.models import ServedModel
from mstar_core.spec.graph import Run, Walk
from mstar_core.spec.machine import Start, Transition
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import (
    Cancel,
    Close,
    Closed,
    Ended,
    ErrorInfo,
    FinishPartition,
    Open,
    ServerState,
    StartWalk,
    Stop,
    Submit,
    TensorRef,
    WalkDone,
    WalkFailed,
    WorkerFailed,
    WorkerReady,
)

PATIENCE_S = 20.0


@dataclass
class Machine:
    """Starts `first`, then does what `then` says, if anything."""

    first: Transition = field(default_factory=lambda: Transition(state=0, start=(Start("walk"),)))
    then: object = field(default_factory=lambda: Transition(state=1, end="stop"))
    needs: object = field(default_factory=dict)

    def start(self, request):
        return told(self.first)

    def advance(self, state, event):
        return told(self.then)

    def demand(self, request):
        return told(self.needs)


def told(answer):
    if isinstance(answer, Exception):
        raise answer
    return answer


class Stage:
    """The Conductor, and the mailboxes of the parties that the test plays."""

    def __init__(self, context, machine, running=2, waiting=2):
        walks = tuple(Walk(name=name, partition=name, body=Run("node")) for name in ("walk", "other"))
        partitions = tuple(walk.partition for walk in walks)
        card = SimpleNamespace(name="model")
        spec = SimpleNamespace(card=card, walks=walks, partitions=partitions, machine=machine)
        self.frontend, self.worker = Mailbox(context, "inproc://frontend"), Mailbox(context, "inproc://worker")
        mailbox = Mailbox(context, "inproc://conductor")
        models = {"model": ServedModel(spec, running, waiting)}
        self._conductor = Conductor(mailbox, models, (self.frontend.endpoint,))
        self._waker = mailbox.waker()
        self._thread = threading.Thread(target=self._conductor.run)
        self._thread.start()
        self.tell(WorkerReady("main", self.worker.endpoint, {"model": ["node"]}, {"model": {"node": 100}}))
        assert self.heard() == ServerState(True, {"model": "ready"})

    def tell(self, *messages):
        for message in messages:
            self._waker.send(message)

    def submit(self, *numbers, model="model", **inputs):
        for number in numbers:
            self.tell(Submit(f"r{number}", model, {}, 0, inputs, ["text"], self.frontend.endpoint, number))

    def cancel(self, number, request=None):
        self.tell(Cancel(request or f"r{number}", self.frontend.endpoint, number))

    def heard(self) -> Ended:
        """The next message to the frontend."""
        (message,) = self._next(self.frontend, 1)
        return message

    def ordered(self, count) -> list:
        """The next messages to the worker."""
        return self._next(self.worker, count)

    def opened(self, count) -> dict[int, int]:
        """Ticket to key of the next requests that are opened and started."""
        orders = self.ordered(2 * count)
        assert [type(order) for order in orders] == [Open, StartWalk] * count
        return {order.ticket: order.key for order in orders[::2]}

    def quiet(self) -> bool:
        """Nothing more was said: a refused request, answered in order, tells that all before it was handled."""
        self.submit(99, model="marker")
        assert self.heard().ticket == 99
        return self.worker.receive(0) == [] and self.frontend.receive(0) == []

    def close(self):
        self.tell(Stop())
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._waker.close()
        self.frontend.close()
        self.worker.close()

    def _next(self, box, count):
        pending = self.__dict__.setdefault(f"_pending_{id(box)}", [])
        while len(pending) < count:
            arrived = box.receive(PATIENCE_S)
            assert arrived, f"only {pending} came"
            pending += arrived
        taken, pending[:] = pending[:count], pending[count:]
        return taken


@pytest.fixture
def stage():
    """Makes the stage for a state machine."""
    context, stages = zmq.Context(), []

    def make(machine=None, **limits):
        stages.append(Stage(context, machine or Machine(), **limits))
        return stages[-1]

    yield make
    for each in stages:
        each.close()
    context.term()


def done(key, walk="walk", emitted=0):
    return WalkDone(key, walk, "done", {}, emitted, 3)


def test_a_request_is_opened_started_ended_and_closed(stage):
    stage = stage()
    stage.submit(1)
    key = stage.opened(1)[1]
    stage.tell(done(key, emitted=4))
    assert stage.heard() == Ended(1, "stop", 4, {"walk": 3})
    assert stage.ordered(1) == [Close(key)]
    assert stage.quiet()


def test_no_more_than_the_limit_run_and_the_others_follow_in_order(stage):
    stage = stage(running=2, waiting=3)
    stage.submit(1, 2, 3, 4, 5)
    first = stage.opened(2)
    assert list(first) == [1, 2]
    assert stage.quiet()
    stage.tell(done(first[2]))
    assert stage.heard().ticket == 2
    assert stage.ordered(1) == [Close(first[2])]
    assert stage.quiet()
    stage.tell(Closed(first[2], "main"))
    third = stage.opened(1)
    assert list(third) == [3]
    stage.tell(done(first[1]), done(third[3]), Closed(first[1], "main"), Closed(third[3], "main"))
    assert [stage.heard().ticket, stage.heard().ticket] == [1, 3]
    assert stage.ordered(2) == [Close(first[1]), Close(third[3])]
    assert list(stage.opened(2)) == [4, 5]


def test_a_place_is_free_only_when_the_worker_has_freed_it(stage):
    stage = stage(running=1)
    stage.submit(1, 2)
    key = stage.opened(1)[1]
    stage.cancel(1)
    assert stage.heard().error.code == "cancelled"
    assert stage.ordered(1) == [Close(key)]
    assert stage.quiet()
    stage.tell(Closed(key, "main"))
    assert list(stage.opened(1)) == [2]


def test_a_full_queue_refuses_with_a_time_to_come_back(stage):
    stage = stage(running=1, waiting=1)
    stage.submit(1, 2, 3)
    ended = stage.heard()
    assert (ended.ticket, ended.error.code, ended.error.retry_after) == (3, "overloaded", 1.0)


def test_a_demand_beyond_the_whole_pool_is_refused_and_one_that_fits_is_not(stage):
    machine = Machine(needs={"node": 101})
    stage = stage(machine)
    stage.submit(1)
    ended = stage.heard()
    assert ended.error.code == "invalid_request"
    assert "101 KV tokens in node 'node'" in ended.error.message
    machine.needs = {"node": 100}
    stage.submit(2)
    assert list(stage.opened(1)) == [2]


def test_a_waiting_request_that_is_cancelled_leaves_the_queue(stage):
    stage = stage(running=1)
    stage.submit(1, 2, 3)
    key = stage.opened(1)[1]
    stage.cancel(2)
    assert (stage.heard().ticket, stage.quiet()) == (2, True)
    stage.tell(done(key), Closed(key, "main"))
    assert stage.heard().ticket == 1
    assert stage.ordered(1) == [Close(key)]
    assert list(stage.opened(1)) == [3]


def test_a_request_ends_once_whatever_comes_later(stage):
    stage = stage()
    stage.submit(1)
    key = stage.opened(1)[1]
    stage.tell(WalkFailed(key, "walk", "node", ErrorInfo("node_failed", "boom")))
    stage.cancel(1)
    stage.tell(done(key), WalkFailed(key, "walk", "node", ErrorInfo("node_failed", "again")), Closed(key, "main"))
    stage.cancel(1)
    ended = stage.heard()
    assert (ended.ticket, ended.error.message) == (1, "boom")
    assert stage.ordered(1) == [Close(key)]
    assert stage.quiet()


def test_a_late_cancellation_does_not_hit_the_next_request_of_that_id(stage):
    stage = stage()
    stage.submit(1)
    key = stage.opened(1)[1]
    stage.tell(done(key))
    assert stage.heard().ticket == 1
    assert stage.ordered(1) == [Close(key)]
    stage.tell(Submit("r1", "model", {}, 0, {}, ["text"], stage.frontend.endpoint, 2))
    stage.cancel(1, request="r1")
    assert list(stage.opened(1)) == [2]
    assert stage.quiet()


def test_two_running_requests_cannot_share_an_id(stage):
    stage = stage()
    stage.submit(1)
    stage.opened(1)
    stage.tell(Submit("r1", "model", {}, 0, {}, ["text"], stage.frontend.endpoint, 2))
    ended = stage.heard()
    assert (ended.ticket, ended.error.code) == (2, "conflict")


IMAGE = TensorRef("uint8", (1,), "local", 1)

WRONG_MACHINES = {
    "raises at the start": (Machine(first=ZeroDivisionError("oops")), "ZeroDivisionError: oops"),
    "raises later": (Machine(then=KeyError("state")), "KeyError: 'state'"),
    "raises when asked for its demand": (Machine(needs=ValueError("no idea")), "ValueError: no idea"),
    "gives no transition": (Machine(then=None), "'NoneType' object"),
    "ends while a walk runs": (Machine(first=Transition(state=0, start=(Start("walk"),), end="stop")), "while walk"),
    "ends with nothing": (Machine(then=Transition(state=1)), "neither started a walk nor ended the request"),
    "starts what there is not": (Machine(then=Transition(state=1, start=(Start("wlk"),))), "'wlk'.*'walk'"),
    "starts a walk twice": (Machine(first=Transition(state=0, start=(Start("walk"), Start("walk")))), "running"),
    "finishes what there is not": (
        Machine(then=Transition(state=1, finish=("othr",), start=(Start("walk"),))),
        "'othr'.*'other'",
    ),
    "takes what was not brought": (
        Machine(then=Transition(state=1, start=(Start("walk", {"image": 1}),))),
        "'image' number 1; the request brought 1",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_MACHINES)
def test_a_wrong_state_machine_fails_its_request_once_and_the_server_goes_on(stage, wrong, caplog):
    machine, problem = replace(WRONG_MACHINES[wrong][0]), WRONG_MACHINES[wrong][1]
    stage = stage(machine)
    stage.submit(1, image=[IMAGE])
    if "when asked" not in wrong:
        assert isinstance(stage.ordered(1)[0], Open)
        if machine.first == Machine().first:
            assert isinstance(stage.ordered(1)[0], StartWalk)
            stage.tell(done(1))
        assert stage.ordered(1) == [Close(1)]
        stage.tell(Closed(1, "main"))
    ended = stage.heard()
    assert (ended.ticket, ended.error.code) == (1, "node_failed")
    assert "the state machine of model 'model' failed" in ended.error.message
    assert re.search(problem, ended.error.message)
    machine.first, machine.then, machine.needs = Machine().first, Machine().then, {}
    stage.submit(2)
    key = stage.opened(1)[2]
    stage.tell(done(key))
    assert stage.heard() == Ended(2, "stop", 0, {"walk": 3})
    assert stage.ordered(1) == [Close(key)]
    assert stage.quiet()


def test_partitions_run_beside_each_other_and_finish_on_command(stage):
    both = Transition(state=0, start=(Start("walk"), Start("other")))
    machine = Machine(first=both, then=Transition(state=1, finish=("walk",)))
    stage = stage(machine)
    stage.submit(1)
    assert [type(order) for order in stage.ordered(3)] == [Open, StartWalk, StartWalk]
    stage.tell(done(1))
    assert stage.ordered(1) == [FinishPartition(1, "walk")]
    machine.then = Transition(state=2, end="length")
    stage.tell(done(1, "other"))
    assert stage.heard() == Ended(1, "length", 0, {"walk": 3, "other": 3})


def test_a_failed_worker_ends_its_requests_and_refuses_new_ones(stage):
    stage = stage(running=1)
    stage.submit(1, 2)
    stage.opened(1)
    stage.tell(WorkerFailed("main", "out of memory"))
    ends = [stage.heard(), stage.heard()]
    assert sorted(end.ticket for end in ends) == [1, 2]
    assert {end.error.code for end in ends} == {"unavailable"}
    assert stage.heard() == ServerState(False, {"model": "out of memory"})
    stage.submit(3)
    ended = stage.heard()
    assert (ended.error.code, "out of memory" in ended.error.message) == ("unavailable", True)


def test_a_worker_that_comes_back_serves_as_many_requests_as_before(stage):
    stage = stage(running=1)
    stage.submit(1)
    lost = stage.opened(1)[1]
    stage.tell(WorkerFailed("main", "out of memory"))
    assert stage.heard().error.code == "unavailable"
    assert stage.heard() == ServerState(False, {"model": "out of memory"})
    stage.tell(done(lost), Closed(lost, "main"))
    stage.tell(WorkerReady("main", stage.worker.endpoint, {"model": ["node"]}, {"model": {"node": 100}}))
    assert stage.heard() == ServerState(True, {"model": "ready"})
    stage.submit(2)
    key = stage.opened(1)[2]
    stage.tell(done(key))
    assert stage.heard() == Ended(2, "stop", 0, {"walk": 3})
