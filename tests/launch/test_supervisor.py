"""The supervisor over threads; over processes `test_serve` shows the same from outside."""

from collections import deque

import pytest
import zmq

from mstar_core.errors import Unavailable
from mstar_core.launch.plan import Chosen, thread_plan
from mstar_core.launch.supervisor import Supervisor
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.spec.placement import Placement
from mstar_core.testing import scripted
from mstar_core.testing.plugins import registry_with
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Ended, PeerLost, ServerState

PATIENCE_S = 20.0

TWO_WORKERS = {
    "workers": {"writing": {}, "speaking": {}},
    "groups": [
        {"nodes": ["reader", "writer", "counter"], "worker": "writing"},
        {"nodes": ["speaker"], "worker": "speaking"},
    ],
}

UNEXPECTED = Ended(1, "stop", 0, {})
"""A message that only frontends get; the loop of another party fails upon it."""


class Server:
    """Conductor and workers as threads, and a frontend that only listens."""

    def __init__(self, plugin=scripted, **options):
        registry = registry_with(plugin)
        directory = locate(registry.card("scripted"))
        models = [Chosen(assemble(registry, "scripted", directory), directory, None)]
        self.context = zmq.Context()
        plan = thread_plan(registry, models, Placement.model_validate(TWO_WORKERS), self.context)
        self.mailbox = Mailbox(self.context, plan.conductor.near("frontend"))
        self.heard = deque()
        self.told = []
        self.lost = []
        self.supervisor = Supervisor(self.context, plan, (self.mailbox.address,), self.lost.append, **options)

    def state(self, until):
        """Hear the Conductor until a state holds; that state."""
        while True:
            if not self.heard:
                self.heard.extend(self.mailbox.receive(PATIENCE_S))
                assert self.heard, "the Conductor says nothing"
            message = self.heard.popleft()
            self.told.append(message)
            if isinstance(message, ServerState):
                self.supervisor.observe(message)
                if until(message):
                    return message

    def fail(self, party):
        self.mailbox.send(self.supervisor.addresses()[party], UNEXPECTED)


@pytest.fixture
def start():
    servers = []

    def make(*what, **options):
        servers.append(Server(*what, **options))
        return servers[-1]

    yield make
    for server in servers:
        assert server.supervisor.close()
        server.mailbox.close()
        server.context.term()


def whole(state):
    return state.ready and all(worker.state == "ready" for worker in state.workers.values())


@pytest.fixture
def server(start):
    started = start()
    started.supervisor.start()
    started.state(whole)
    started.supervisor.wait_started()
    return started


def test_a_worker_that_fails_is_reported_with_its_reason_and_started_anew_elsewhere(server):
    before = server.supervisor.addresses()
    server.fail("writing")
    broken = server.state(lambda state: not state.ready)
    assert "AssertionError: a worker gets no Ended" in broken.workers["writing"].state
    assert broken.workers["speaking"].state == "ready"
    server.state(whole)
    after = server.supervisor.addresses()
    assert after["writing"] != before["writing"]
    assert after["speaking"] == before["speaking"]
    assert server.supervisor.restarts() == {"conductor": 0, "writing": 1, "speaking": 0}
    assert server.lost == []


def test_a_conductor_that_fails_is_told_and_started_anew_at_its_address(server):
    before = server.supervisor.addresses()["conductor"]
    server.fail("conductor")
    server.mailbox.disconnect(before)
    server.state(lambda state: not state.ready)
    server.state(whole)
    assert server.lost == ["failed: AssertionError: the Conductor gets no Ended"]
    assert server.supervisor.addresses()["conductor"] == before
    assert server.supervisor.restarts()["conductor"] == 1


def test_a_new_conductor_tells_of_workers_that_ended_before_its_time(server):
    """The one before may have ended with them, or before it could tell."""
    addresses = server.supervisor.addresses()
    server.fail("speaking")
    server.state(lambda state: not state.ready)
    server.state(whole)
    server.fail("conductor")
    server.mailbox.disconnect(addresses["conductor"])
    server.state(lambda state: not state.ready)
    assert server.told.count(PeerLost(addresses["speaking"])) == 2
    server.state(whole)


def test_a_worker_that_loads_is_not_asked(start):
    server = start()
    server.supervisor.start()
    assert server.supervisor.addresses().keys() == {"conductor", "writing", "speaking"}
    assert [name for name, address in server.supervisor.addresses().items() if address] == ["conductor"]


def test_a_worker_that_does_not_become_ready_in_time_ends_the_start(start):
    server = start(start_timeout=0.5)
    server.supervisor.start()
    with pytest.raises(Unavailable, match=r"worker '\w+' was not ready within 0\.5 s"):
        server.supervisor.wait_started()  # nobody tells the supervisor what the Conductor says


def test_a_supervisor_that_is_closed_while_it_starts_lets_nobody_wait(start):
    server = start()
    server.supervisor.start()
    server.supervisor.close()
    with pytest.raises(Unavailable, match="it was stopped before it was ready"):
        server.supervisor.wait_started()
    assert set(server.supervisor.addresses().values()) == {None}
