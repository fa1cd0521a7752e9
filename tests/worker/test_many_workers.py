"""The scripted model on several workers: what it makes is always the same, and nothing is left of any request."""

from itertools import combinations

import numpy as np
import pytest

from mstar_core.errors import Cancelled, NodeFailed
from mstar_core.spec.content import Audio
from mstar_core.testing import scripted
from mstar_core.testing.plugins import registry_with
from mstar_core.wire.messages import EMIT_WINDOW


def made(ticket):
    """The audio and the tensors of a request, each in its order, why it ended, and what was counted."""
    contents = list(ticket)
    audio = [content.samples.tolist() for content in contents if isinstance(content, Audio)]
    tensors = [content.array.tolist() for content in contents if not isinstance(content, Audio)]
    return audio, tensors, ticket.end.reason, dict(ticket.end.usage)


def group(nodes, *workers):
    return {"nodes": list(nodes), "worker": list(workers)}


NODES = ("reader", "counter", "writer", "speaker")

SHAPES = {
    **{f"{node} apart": [group([node], "second")] for node in NODES},
    **{f"{one} and {other} apart": [group([one, other], "second")] for one, other in combinations(NODES, 2)},
    "every node apart": [group([node], name) for node, name in zip(NODES, "abcd", strict=True)],
    **{f"replicas of {node}": [group([node], "second", "third")] for node in NODES},
    "replicas of all": [group(NODES, "second", "third")],
}

REQUESTS = (
    {},
    {"items": 0},
    {"items": 1, "voice": "high"},
    {"items": 30, "code": 7},
    {"items": 9, "max_items": 3},
    {"rounds": 1, "items": 2},
    {"rounds": 40, "items": 0},
    {"rounds": 5, "items": 8, "max_items": 8},
    {"rounds": 3, "outputs": frozenset({"audio"})},
    {"rounds": 3, "outputs": frozenset({"tensor"})},
)


@pytest.fixture(scope="module")
def registry():
    return registry_with(scripted)


@pytest.fixture(scope="module")
def expected(registry, serving):
    """What one worker makes of the requests."""
    with serving(registry, "scripted") as served:
        return [made(served.submit(seed=seed, **request)) for seed, request in enumerate(REQUESTS)]


@pytest.fixture(scope="module", params=SHAPES)
def server(request, registry, serving):
    with serving(registry, "scripted", SHAPES[request.param]) as served:
        yield served


def test_a_request_alone_makes_what_it_makes_on_one_worker(server, expected):
    assert [made(server.submit(seed=seed, **request)) for seed, request in enumerate(REQUESTS)] == expected


def test_requests_at_the_same_time_make_what_they_make_on_one_worker(server, expected):
    tickets = [server.submit(seed=seed, **request) for seed, request in enumerate(REQUESTS)]
    assert [made(ticket) for ticket in tickets] == expected


def test_every_worker_has_had_its_part(server):
    calls = {name: server.calls(worker=name) for name in server.service.workers}
    assert all(calls.values()), calls


@pytest.mark.parametrize(("node", "run"), [("reader", 0), ("writer", 0), ("writer", 3), ("speaker", 1)])
def test_a_node_that_raises_is_named_and_fails_its_request_only(server, node, run, expected, caplog):
    walk = {"reader": "prefill", "writer": "write", "speaker": "speak"}[node]
    beside = [server.submit(seed=seed, **request) for seed, request in enumerate(REQUESTS)]
    with pytest.raises(NodeFailed, match=f"node '{node}' failed in walk '{walk}': RuntimeError: {node} was told"):
        list(server.submit(fail=node, fail_at=run))
    assert [made(ticket) for ticket in beside] == expected


PHASES = {
    "at once": ({"items": 9}, lambda server, before: True),
    "while it counts": ({"rounds": 10_000}, lambda server, before: server.calls(walk="count") > before["count"] + 5),
    "while it writes": (
        {"items": 10_000, "delay_ms": 1},
        lambda server, before: server.calls(walk="write") > before["write"] + 5,
    ),
    "while it speaks": (
        {"items": 10_000, "slow_speaker_ms": 10},
        lambda server, before: server.calls(walk="speak") > before["speak"] + 2,
    ),
    "while nobody reads": (
        {"items": 10_000},
        lambda server, before: server.calls(walk="speak") == before["speak"] + EMIT_WINDOW,
    ),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_request_that_is_aborted_is_free_on_every_worker(server, phase, eventually):
    params, reached = PHASES[phase]
    before = {walk: server.calls(walk=walk) for walk in ("count", "write", "speak")}
    ticket = server.submit(**params)
    assert eventually(lambda: reached(server, before))
    ticket.cancel()
    with pytest.raises(Cancelled):
        list(ticket)
    assert server.at_rest()


CAPACITY = 8
"""Items in the buffer of the scripted model's stream: four chunks of two."""


def test_a_request_that_nobody_reads_stops_at_the_window_and_goes_on_when_it_is_read(server, eventually):
    spoken, written = server.calls(walk="speak"), server.calls(walk="write")
    ticket = server.submit(items=300, code=3)
    assert eventually(lambda: server.calls(walk="speak") == spoken + EMIT_WINDOW)
    assert eventually(lambda: server.calls(walk="write") == written + 2 * EMIT_WINDOW + CAPACITY)
    assert server.metric("mstar_stream_items") == CAPACITY
    samples = np.concatenate([content.samples for content in ticket])
    values = [scripted.sample_of(3, 1, step) for step in range(300)]
    np.testing.assert_array_equal(samples, np.repeat(np.float32(values), scripted.ITEM_SAMPLES))
    assert server.calls(walk="write") == written + 301


def test_a_slow_speaker_holds_the_writer_back(server):
    beside = server.submit(items=20)
    ticket = server.submit(items=60, slow_speaker_ms=1)
    full = [server.metric("mstar_stream_items") for _ in ticket]
    assert max(full) <= 2 * CAPACITY
    assert len(full) == 30
    assert len(list(beside)) == 10
