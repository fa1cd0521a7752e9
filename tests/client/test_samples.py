import math
import threading

import numpy as np
import pytest

from mstar_core.client.samples import Counts, samples_of
from mstar_core.errors import Unavailable
from mstar_core.wire.address import host_identity
from mstar_core.wire.exchange import Exchange
from mstar_core.wire.histogram import Histogram
from mstar_core.wire.messages import Address, ErrorInfo, Metrics, Sample


@pytest.fixture
def metrics(stage):
    """Reads the samples of the frontend and its parties; the named ones answer with their samples."""

    def read(answers=None, away=()):
        answers = answers or {}
        parties = {name: getattr(stage, name).address for name in answers} | dict.fromkeys(away)
        found = []
        thread = threading.Thread(target=lambda: found.extend(samples_of(stage.frontend, parties, 20.0)))
        thread.start()
        for name, samples in answers.items():
            party = getattr(stage, name)
            party.tell(stage.address, Metrics(party.heard().number, name, samples))
        thread.join()
        return found

    return read


def values(samples, name):
    """Value by labels of the samples of one name."""
    return {tuple(sorted(each.labels.items())): each.value for each in samples if each.name == name}


def gauge(name, value, **labels):
    return Sample(name, "gauge", "Help.", labels, value)


def test_a_histogram_counts_what_is_not_above_each_border():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.5):
        histogram.observe(value)
    sample = histogram.sample("name", "Help.", {"a": "b"})
    assert (sample.kind, sample.value, sample.labels) == ("histogram", 5.5, {"a": "b"})
    assert sample.buckets == [(1.0, 2), (2.0, 3), (math.inf, 4)]


def test_requests_are_counted_by_model_and_outcome_with_their_times():
    counts = Counts()
    counts.submitted()
    counts.first_output("model", 0.2)
    counts.ended("model", "stop", 0.4)
    samples = [*counts.samples()]
    assert values(samples, "mstar_requests_submitted") == {(): 1}
    assert values(samples, "mstar_requests_ended") == {(("model", "model"), ("reason", "stop")): 1}
    assert values(samples, "mstar_request_first_output_seconds") == {(("model", "model"),): 0.2}
    assert values(samples, "mstar_request_duration_seconds") == {(("model", "model"),): 0.4}


def test_the_frontend_counts_open_requests_ends_and_outputs_that_wait(stage, metrics):
    ticket, submit = stage.submit("r1")
    _failed, other = stage.submit("r2")
    stage.emit(submit.ticket, 1, 2, 3)
    stage.end(other.ticket, error=ErrorInfo("node_failed", "boom"))
    stage.settle()
    next(iter(ticket))
    samples = metrics()
    assert values(samples, "mstar_requests_submitted") == {(): 2}
    assert values(samples, "mstar_requests_open") == {(): 1}
    assert values(samples, "mstar_requests_ended") == {(("model", "model"), ("reason", "node_failed")): 1}
    assert values(samples, "mstar_outputs_waiting") == {(): 2}
    (first,) = [each for each in samples if each.name == "mstar_request_first_output_seconds"]
    assert first.buckets[-1] == (math.inf, 1)


def test_requests_that_fail_with_the_conductor_are_counted(stage, metrics):
    stage.submit()
    stage.frontend.fail_all(Unavailable("gone"))
    assert values(metrics(), "mstar_requests_ended") == {(("model", "model"), ("reason", "unavailable")): 1}


def test_who_answers_is_up_and_samples_without_a_party_get_its_name(metrics):
    samples = metrics(
        {"conductor": [gauge("mstar_wait", 1)], "worker": [gauge("mstar_wait", 2, worker="worker")]}, away=["gone"]
    )
    up = values(samples, "mstar_up")
    assert up == {(("party", "conductor"),): 1, (("party", "worker"),): 1, (("party", "gone"),): 0}
    assert values(samples, "mstar_wait") == {(("party", "conductor"),): 1, (("worker", "worker"),): 2}


def test_tensors_in_shared_memory_are_counted_under_their_transports_name(metrics):
    exchange = Exchange(Address(host_identity(), "ipc:///nowhere/worker"))
    exchange.hold(np.zeros(5000))
    assert values(metrics({"worker": exchange.samples()}), "mstar_tensors_published") == {(): 1}
    exchange.close()


def test_tensors_on_their_way_are_those_in_all_shared_memory_and_once_those_of_this_process(stage, metrics):
    stage.submit(prompt=np.zeros(9))
    local = float(len(stage.store))
    assert local == 1
    answers = {
        "worker": [gauge("mstar_local_tensors", local), gauge("mstar_shared_tensors", 3)],
        "other": [gauge("mstar_shared_tensors", 4)],
    }
    assert values(metrics(answers), "mstar_tensors_published") == {(): local + 7}
