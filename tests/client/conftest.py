"""A frontend on its own thread, with the test as its Conductor and its workers."""

import itertools
import threading
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import zmq

from mstar_core.client.frontend import Frontend
from mstar_core.spec.content import Prepared
from mstar_core.wire.exchange import Exchange
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Emitted, Ended, Output, Released, ServerState, Submit
from mstar_core.wire.store import LocalStore

PATIENCE_S = 20.0


class PassThrough:
    """A renderer that gives what it is given."""

    def output(self, modality, value):
        return modality, value.tolist()

    def finish(self):
        return ()

    def usage(self, tokens):
        return tokens


class Party:
    """A mailbox and an exchange that the test plays."""

    def __init__(self, context, name, store):
        self.mailbox = Mailbox(context, f"inproc://{name}")
        self.address = self.mailbox.address
        self.exchange = Exchange(self.address, local=store)
        self._pending = []

    def tell(self, address, *messages):
        for message in messages:
            self.mailbox.send(address, message)

    def heard(self):
        """The next message."""
        while not self._pending:
            self._pending += self.mailbox.receive(PATIENCE_S)
        return self._pending.pop(0)

    def silent(self) -> bool:
        """Whether nothing more has come so far."""
        self._pending += self.mailbox.receive(0)
        return not self._pending

    def close(self):
        self.mailbox.close()
        self.exchange.close()


class Stage:
    """`frontend` and its `states`, and the parties `conductor`, `worker` and `other`."""

    def __init__(self, context, trace=None, keys=None):
        self.store = LocalStore()
        self.parties = [Party(context, name, self.store) for name in ("conductor", "worker", "other")]
        self.conductor, self.worker, self.other = self.parties
        self.mailbox = Mailbox(context, "inproc://frontend", keys=keys)
        self.address = self.mailbox.address
        self.exchange = Exchange(self.address, local=self.store)
        self.states = []
        self._heard = threading.Condition()
        self._marks = itertools.count()
        self._free, self._entered = threading.Event(), threading.Event()
        self._free.set()
        self.frontend = Frontend(self.mailbox, self.conductor.address, self.exchange, self._on_state, trace)
        self._thread = threading.Thread(target=self.frontend.run)
        self._thread.start()

    def _on_state(self, state):
        self._entered.set()
        self._free.wait(PATIENCE_S)
        with self._heard:
            self.states.append(state)
            self._heard.notify_all()

    def submit(self, request="r1", timeout=None, **inputs):
        """A ticket, and what the Conductor gets for it."""
        ticket = self.send(request, timeout, **inputs)
        message = self.conductor.heard()
        assert isinstance(message, Submit)
        return ticket, message

    def send(self, request="r1", timeout=None, **inputs):
        arrays = {name: [np.asarray(value)] for name, value in inputs.items()}
        prepared = Prepared(inputs=arrays, params={"heat": 1.0}, outputs=frozenset({"text", "audio"}))
        return self.frontend.submit(request, "model", prepared, 7, PassThrough(), timeout)

    def emit(self, number, *values, worker=None, modality="text"):
        """Outputs of a worker for a ticket, in one message."""
        worker = worker or self.worker
        outputs = [
            Output(number, modality, worker.exchange.publish(np.atleast_1d(value), self.address)) for value in values
        ]
        worker.tell(self.address, Emitted(worker.address, outputs))

    def end(self, number, emitted=0, reason="stop", error=None):
        """The end of a ticket, and of its inputs."""
        self.conductor.tell(self.address, Ended(number, reason, emitted, {"walk": 3}, error), Released(number))

    def settle(self):
        """Wait until the frontend has done all that it was told."""
        marks = [ServerState(False, {"mark": str(next(self._marks))}, {}) for _ in self.parties]
        for party, mark in zip(self.parties, marks, strict=True):
            party.tell(self.address, mark)
        with self._heard:
            assert self._heard.wait_for(lambda: all(mark in self.states for mark in marks), PATIENCE_S)

    @contextmanager
    def busy(self):
        """The frontend's thread is busy while the block runs."""
        self._free.clear()
        self._entered.clear()
        self.conductor.tell(self.address, ServerState(False, {}, {}))
        assert self._entered.wait(PATIENCE_S)
        yield
        self._free.set()

    def close(self):
        self.frontend.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self.mailbox.close()
        self.exchange.close()
        for party in self.parties:
            party.close()


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.term()


@pytest.fixture
def make_stage(context):
    """Makes a stage; closes it at the end."""
    with ExitStack() as stack:

        def make(**options):
            stage = Stage(context, **options)
            stack.callback(stage.close)
            return stage

        yield make


@pytest.fixture
def stage(make_stage):
    return make_stage()
