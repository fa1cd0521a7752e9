"""Servers of models whose nodes are on several workers. Whatever a test did, nothing may be left in them."""

import time
from contextlib import contextmanager

import pytest

from mstar_core.client.service import Service
from mstar_core.spec.content import Text
from mstar_core.spec.placement import Placement

PATIENCE_S = 60.0
"""How long to wait for what must come: only a broken server takes as long, however busy the machine is."""

HELD = (
    "mstar_requests_open",
    "mstar_worker_requests",
    "mstar_worker_load",
    "mstar_tensors_published",
    "mstar_stream_items",
    "mstar_ready_calls",
    "mstar_kv_pages_used",
    "mstar_kv_requests",
)
"""Gauges that are 0 in a server that serves nobody."""


class Served:
    """A service of one model. `killed` are the workers that a test has ended: no other may have been started again."""

    def __init__(self, service, model):
        self.service = service
        self.model = model
        self.killed = 0

    def submit(self, contents=None, outputs=None, **params):
        given = [Text("Hello.")] if contents is None else contents
        return self.service.submit(self.model, given, {"seed": 1, **params}, outputs=outputs)

    def metric(self, *names, **labels):
        samples = self.service.metrics()
        return sum(each.value for each in samples if each.name in names and labels.items() <= each.labels.items())

    def calls(self, **labels):
        """How many node runs there have been."""
        return self.metric("mstar_batch_calls", **labels)

    def held(self):
        """What requests hold now."""
        return {name: value for name in HELD if (value := self.metric(name))}

    def at_rest(self):
        """Whether all comes free, and no worker had to be started again but those that were killed."""
        return wait_for(lambda: not self.metric(*HELD) and self.metric("mstar_restarts") == self.killed)


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return held


@contextmanager
def serve(registry, model, groups=(), **options):
    names = {name for group in groups for name in group["worker"]}
    workers = {name: {"device": "cpu", "threads": 1} for name in ("first", *sorted(names - {"first"}))}
    placement = Placement.model_validate({"workers": workers, "groups": groups})
    with Service.start([model], registry=registry, placement=placement, **options) as service:
        served = Served(service, model)
        yield served
        assert served.at_rest(), served.held()
        assert service.health().ready


@pytest.fixture(scope="session")
def serving():
    """Serves a model, its groups placed as given, while a block runs."""
    return serve


@pytest.fixture(scope="session")
def eventually():
    """Waits until a condition holds; says whether it came to hold."""
    return wait_for
