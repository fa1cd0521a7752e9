"""The Conductor on its own thread, with the test as its frontend and its worker."""

import re
import threading
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import zmq

from mstar_core.conductor import workers as workers_module
from mstar_core.conductor.conductor import Conductor
from mstar_core.conductor.models import served_models
from mstar_core.spec.graph import Node, Run, Walk
from mstar_core.spec.machine import Start, Transition
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.placement import Placement
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import (
    Address,
    Beat,
    Cancel,
    Close,
    Closed,
    Ended,
    ErrorInfo,
    FinishPartition,
    Open,
    PeerLost,
    Register,
    Released,
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


PARTITIONS = ("walk", "other")
"""Two walks, each in a partition of its own name, each running the node of its own name."""

NODES = tuple(Node(name=name, engine="stateless", inputs=(), outputs=(), factory="none") for name in PARTITIONS)


def model_of(machine):
    walks = tuple(Walk(name=name, partition=name, body=Run(name)) for name in PARTITIONS)
    card = SimpleNamespace(name="model")
    return ModelSpec(card=card, config=None, nodes=NODES, walks=walks, edges=(), inputs=(), machine=machine)


class Stage:
    """The Conductor, and the mailboxes of the parties that the test plays: a frontend, and a worker by each name that
    the placement has."""

    def __init__(self, context, machine, placement=None, **limits):
        spec = model_of(machine)
        fields = {"models": {"model": {"running": 2, "waiting": 2, **limits}}, **(placement or {})}
        placed = Placement.model_validate(fields)
        self.frontend = Mailbox(context, "inproc://frontend")
        self.workers = {name: Mailbox(context, f"inproc://{name}") for name in placed.workers}
        self.worker = next(iter(self.workers.values()))
        self.released = []
        self._said = None
        self.context = context
        mailbox = Mailbox(context, "inproc://conductor")
        self._conductor = Conductor(mailbox, served_models([spec], placed), (self.frontend.address,))
        self._waker = mailbox.waker()
        self._thread = threading.Thread(target=self._conductor.run)
        self._thread.start()
        for name in self.workers:
            self.tell(self.ready(name))
            self.state = self.heard()
        assert (self.state.ready, self.state.models) == (True, {"model": "ready"})

    def ready(self, name="main", capacity=100):
        """A worker's report."""
        return WorkerReady(
            name, self.workers[name].address, {"model": ["walk"]}, {"model": {"walk": capacity}}, "cpu", 0, 1
        )

    def tell(self, *messages):
        for message in messages:
            self._waker.send(message)

    def submit(self, *numbers, model="model", **inputs):
        for number in numbers:
            self.tell(Submit(f"r{number}", model, {}, 0, inputs, ["text"], self.frontend.address, number))

    def cancel(self, number, request=None):
        self.tell(Cancel(request or f"r{number}", self.frontend.address, number))

    def heard(self) -> Ended | ServerState:
        """The next message to the frontend, but for those that say what is read no more, or gone, or as it was."""
        while isinstance(message := self._next(self.frontend, 1)[0], Released | PeerLost) or message == self._said:
            self.released += [message.ticket] if isinstance(message, Released) else []
        self._said = message if isinstance(message, ServerState) else self._said
        return message

    def ordered(self, count, worker=None) -> list:
        """The next messages to a worker."""
        return self._next(self.workers[worker] if worker else self.worker, count)

    def opened(self, count) -> dict[int, int]:
        """Ticket to key of the next requests that are opened and started."""
        orders = self.ordered(2 * count)
        assert [type(order) for order in orders] == [Open, StartWalk] * count
        return {order.ticket: order.key for order in orders[::2]}

    def quiet(self) -> bool:
        """Nothing more was said: a refused request, answered in order, tells that all before it was handled."""
        self.submit(99, model="marker")
        assert self.heard().ticket == 99
        rest = self.frontend.receive(0)
        self.released += [message.ticket for message in rest if isinstance(message, Released)]
        return all(isinstance(message, Released) for message in rest) and all(
            worker.receive(0) == [] for worker in self.workers.values()
        )

    def stop(self):
        """The Conductor ends; what it has said is forgotten."""
        if self._thread.is_alive():
            self.tell(Stop())
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive()
        self._said = None

    def close(self):
        self.stop()
        self._waker.close()
        for mailbox in (self.frontend, *self.workers.values()):
            mailbox.close()

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
    machine = Machine(needs={"walk": 101})
    stage = stage(machine)
    stage.submit(1)
    ended = stage.heard()
    assert ended.error.code == "invalid_request"
    assert "101 KV tokens in node 'walk'" in ended.error.message
    machine.needs = {"walk": 100}
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
    stage.tell(Submit("r1", "model", {}, 0, {}, ["text"], stage.frontend.address, 2))
    stage.cancel(1, request="r1")
    assert list(stage.opened(1)) == [2]
    assert stage.quiet()


def test_two_running_requests_cannot_share_an_id(stage):
    stage = stage()
    stage.submit(1)
    stage.opened(1)
    stage.tell(Submit("r1", "model", {}, 0, {}, ["text"], stage.frontend.address, 2))
    ended = stage.heard()
    assert (ended.ticket, ended.error.code) == (2, "conflict")


IMAGE = TensorRef("uint8", (1,), b"0")

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
    state = stage.heard()
    assert (state.ready, state.models) == (False, {"model": "worker 'main': out of memory"})
    assert sorted(stage.released) == [1, 2]
    stage.submit(3)
    ended = stage.heard()
    assert (ended.error.code, "out of memory" in ended.error.message) == ("unavailable", True)


def test_a_worker_that_comes_back_serves_as_many_requests_as_before(stage):
    stage = stage(running=1)
    stage.submit(1)
    lost = stage.opened(1)[1]
    stage.tell(WorkerFailed("main", "ran out of memory", restarting=True))
    assert stage.heard().error.code == "unavailable"
    assert stage.heard().models == {"model": "worker 'main': restarting: it ran out of memory"}
    stage.tell(done(lost), Closed(lost, "main"), stage.ready())
    assert stage.heard().ready
    stage.submit(2)
    key = stage.opened(1)[2]
    stage.tell(done(key))
    assert stage.heard() == Ended(2, "stop", 0, {"walk": 3})


REPLICAS = {
    "workers": {"a": {}, "b": {}, "c": {}},
    "groups": [{"nodes": ["walk"], "worker": ["a", "b"]}, {"nodes": ["other"], "worker": "c"}],
}


def routes(stage, *numbers):
    """Which of `a` and `b` each request was given to; they are opened on `c` as well, where nothing is started."""
    stage.submit(*numbers)
    opened = {order.ticket: order for order in stage.ordered(len(numbers), "c")}
    names = {stage.workers[name].address: name for name in stage.workers}
    given = {number: [names[address] for address in opened[number].route] for number in numbers}
    assert all(route[1] == "c" for route in given.values())
    for number in numbers:
        orders = stage.ordered(2, given[number][0])
        assert [type(order) for order in orders] == [Open, StartWalk]
        assert (orders[0].key, orders[1].key) == (opened[number].key, opened[number].key)
    return {number: (route[0], opened[number].key) for number, route in given.items()}


def test_a_request_gets_the_replica_with_the_fewest_and_a_walk_starts_at_its_home(stage):
    stage = stage(placement=REPLICAS, running=8)
    given = routes(stage, 1, 2, 3, 4)
    assert [name for name, _ in given.values()] == ["a", "b", "a", "b"]
    for number in (1, 3):
        key = given[number][1]
        stage.tell(done(key))
        assert stage.heard().ticket == number
        assert stage.ordered(1, "a") == stage.ordered(1, "c") == [Close(key)]
        stage.tell(Closed(key, "a"), Closed(key, "c"))
    assert [name for name, _ in routes(stage, 5, 6).values()] == ["a", "a"]


def test_inputs_are_released_when_the_last_worker_has_let_go(stage):
    stage = stage(placement=REPLICAS)
    (_, key) = routes(stage, 1)[1]
    stage.tell(done(key))
    assert stage.heard().ticket == 1
    assert stage.ordered(1, "a") == stage.ordered(1, "c") == [Close(key)]
    stage.tell(Closed(key, "a"))
    assert stage.quiet()
    assert 1 not in stage.released
    stage.tell(Closed(key, "c"))
    assert stage.quiet()
    assert 1 in stage.released


def test_a_lost_replica_costs_its_own_requests_only(stage):
    stage = stage(placement=REPLICAS, running=8)
    given = routes(stage, 1, 2)
    stage.tell(WorkerFailed("a", "was killed", restarting=True))
    ended = stage.heard()
    assert (ended.ticket, ended.error.code) == (1, "unavailable")
    state = stage.heard()
    assert (state.ready, state.workers["a"].state) == (True, "restarting: it was killed")
    lost = PeerLost(stage.workers["a"].address)
    assert stage.ordered(1, "b") == [lost]
    assert stage.ordered(2, "c") == [Close(given[1][1]), lost]
    assert {name for name, _ in routes(stage, 3, 4).values()} == {"b"}
    stage.tell(WorkerFailed("c", "killed"))
    assert sorted(stage.heard().ticket for _ in range(3)) == [2, 3, 4]
    assert stage.heard().models == {"model": "worker 'c': killed"}


def test_the_smallest_pool_of_a_node_decides_what_can_never_fit(stage):
    stage = stage(Machine(needs={"walk": 50}), placement=REPLICAS)
    stage.tell(stage.ready("b", capacity=49))
    stage.submit(1)
    assert "its pool holds 49" in stage.heard().error.message


def test_a_request_that_takes_too_long_ends_in_time_and_names_the_limit(stage):
    stage = stage(deadline=0.05)
    stage.submit(1)
    key = stage.opened(1)[1]
    ended = stage.heard()
    assert (ended.ticket, ended.error.code) == (1, "deadline_exceeded")
    assert "0.05 s" in ended.error.message
    assert stage.ordered(1) == [Close(key)]


def test_a_silent_worker_is_given_up_and_begins_anew_when_it_speaks(stage, monkeypatch):
    stage = stage()
    stage.submit(1)
    stage.opened(1)
    monkeypatch.setattr(workers_module, "SILENCE_S", -1.0)
    assert stage.heard().error.code == "unavailable"
    assert stage.heard().models["model"].startswith("worker 'main': silent")
    monkeypatch.setattr(workers_module, "SILENCE_S", 60.0)
    stage.tell(Beat("main"))
    (order,) = stage.ordered(1)
    assert isinstance(order, Register)
    stage.tell(stage.ready())
    assert stage.heard().ready


@pytest.fixture
def successor(stage):
    """Starts a second Conductor, after one that a worker `main` and a frontend have known; what they hear."""
    first, started = stage(), []

    def start(**options):
        conductor, worker = (Mailbox(first.context, f"inproc://{name}") for name in ("second", "live"))
        models = served_models([model_of(Machine())], Placement())
        workers = {"main": worker.address}
        anew = Conductor(conductor, models, (first.frontend.address,), workers=workers, first_key=2**40, **options)
        first.stop()
        first.workers["main"].close()
        first.workers["main"] = worker
        started.append((conductor.waker(), threading.Thread(target=anew.run)))
        started[-1][1].start()
        assert first.ordered(1, "main") == [Register(conductor.address, 2**40)]
        return first, started[-1][0]

    yield start
    for waker, thread in started:
        waker.send(Stop())
        thread.join(PATIENCE_S)
        waker.close()


def test_a_conductor_started_anew_asks_live_workers_to_forget(successor):
    stage, second = successor()
    second.send(stage.ready())
    assert stage.heard().ready


def test_a_conductor_started_anew_tells_everybody_of_workers_that_are_lost(successor):
    lost = PeerLost(Address("here", "inproc://lost"))
    stage, second = successor(lost=(lost.address,))
    assert stage.frontend.receive(PATIENCE_S) == [lost]
    second.send(stage.ready())
    assert stage.ordered(1, "main") == [lost]


def test_a_worker_that_ends_before_it_has_answered_a_new_conductor_is_lost(successor):
    stage, second = successor()
    second.send(WorkerFailed("main", "killed", restarting=True))
    assert stage.frontend.receive(PATIENCE_S)[0] == PeerLost(stage.workers["main"].address)
