"""A node with a KV cache whose walks are on different workers: what it holds moves, and nobody can tell."""

import importlib
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from mstar_core import env
from mstar_core.errors import Cancelled, NodeFailed, Unavailable
from mstar_core.plugins.registry import load_registry
from mstar_core.spec.content import Tensor
from mstar_core.testing import distributions

PATIENCE_S = 20.0
PAGE = 4

SIZES = {"kv": {"tokens": 128 * PAGE, "page": PAGE}, "batch": {"requests": 4, "tokens": 2 * PAGE}}
"""Of every pool and batch: prompts of three pages are read in two steps."""


def lm(worker, *walks, **sizes):
    return {"nodes": ["lm"], "walks": list(walks), "worker": worker, **SIZES, **sizes}


ONE = [lm(["a"])]
APART = [lm(["a"], "prefill"), lm(["b"], "fork", "decode")]
REPLICAS = [lm(["a", "b"])]
ANSWERING_REPLICAS = [lm(["a"], "prefill"), lm(["b", "c"], "fork", "decode")]
EVERYWHERE = [lm(["a"], "prefill"), lm(["b"], "fork"), lm(["c"], "decode")]

SHAPES = {
    "one worker's process": (ONE, True),
    "prefill and decode apart": (APART, False),
    "prefill and decode in two processes": (APART, True),
    "replicas": (REPLICAS, False),
    "replicas in two processes": (REPLICAS, True),
    "decode on replicas": (ANSWERING_REPLICAS, False),
    "decode on replicas in three processes": (ANSWERING_REPLICAS, True),
    "every walk apart": (EVERYWHERE, False),
}


def prompt(length, first=3):
    return [(7 * place + first) % 50 for place in range(length)]


SETTINGS = ({}, {"temperature": 1.0, "penalty": 1.3})
CASES = [
    *(([prompt(length)], settings) for length in (1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE) for settings in SETTINGS),
    ([prompt(3), prompt(1, 5), prompt(9, 8)], {"temperature": 1.0, "penalty": 1.3}),
    ([prompt(5), prompt(4, 5)], {"temperature": 0.9, "penalty": 1.2, "fork": True}),
    ([prompt(2 * PAGE)] * 4, {"temperature": 1.0, "new": 3}),
]
"""Prompts and parameters of the requests that every placement must answer alike."""


def submitted(server, prompts, **params):
    return server.submit([Tensor("prompt", np.array(ids, dtype=np.int64)) for ids in prompts], **params)


def write(server, prompts, **params):
    return written(submitted(server, prompts, **params))


def written(ticket):
    """Every id and digest, why it ended, and the tokens of each walk."""
    values = [int(content.array) for content in ticket]
    return values, ticket.end.reason, dict(ticket.end.usage)


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """The model `scribe` as an installed plugin, which the processes of workers find too."""
    directory = tmp_path_factory.mktemp("site-packages")
    source = Path(__file__).parent / "scribe"
    files = {"nodes.py": (source / "nodes.py").read_text()}
    distributions.install(directory, "mstar-scribe", (source / "plugin.py").read_text(), files=files)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        patch.setenv(env.PLUGINS.name, "mstar-scribe")
        yield load_registry([str(directory)])


@pytest.fixture(scope="module")
def nodes(registry):
    """The module of the nodes of this process."""
    return importlib.import_module("mstar_scribe.nodes")


@pytest.fixture(scope="module")
def expected(registry, serving):
    """What one worker in this process writes, one request after the other."""
    with serving(registry, "scribe", ONE) as served:
        return [write(served, prompts, seed=seed, **params) for seed, (prompts, params) in enumerate(CASES)]


@pytest.fixture(scope="module", params=SHAPES)
def server(request, registry, serving):
    placed, processes = SHAPES[request.param]
    with serving(registry, "scribe", placed, processes=processes) as served:
        yield served


def test_a_request_alone_is_answered_as_by_one_worker(server, expected):
    made = [write(server, prompts, seed=seed, **params) for seed, (prompts, params) in enumerate(CASES)]
    assert made == expected


def test_requests_at_the_same_time_are_answered_as_by_one_worker(server, expected):
    tickets = [submitted(server, prompts, seed=seed, **params) for seed, (prompts, params) in enumerate(CASES)]
    assert [written(ticket) for ticket in tickets] == expected


def test_every_worker_has_had_its_part(server):
    names = server.service.workers
    calls = {name: server.calls(worker=name) for name in names}
    assert all(calls.values()), calls


@pytest.mark.parametrize("read", [1, 5, 40])
def test_requests_that_are_aborted_while_they_are_answered_are_free_on_every_worker(server, read):
    tickets = [submitted(server, [prompt(3 * PAGE)], new=200, endless=True, seed=seed) for seed in range(3)]
    for ticket in tickets:
        contents = iter(ticket)
        for _ in range(read):
            next(contents)
        ticket.cancel()
        with pytest.raises(Cancelled):
            list(contents)
    assert server.at_rest()


def test_the_answers_are_worth_comparing(expected):
    values, reasons, usages = zip(*expected, strict=True)
    assert len(set(map(tuple, values))) == len(CASES)
    assert set(reasons) == {"stop", "length"}
    assert max(usage["prefill"] for usage in usages) == 8 * PAGE


TIGHT = {"kv": {"tokens": 8 * PAGE, "page": PAGE}}


@pytest.mark.parametrize(
    ("reading", "answering"), [({}, TIGHT), (TIGHT, {}), (TIGHT, TIGHT)], ids=["there", "here", "here and there"]
)
def test_a_pool_that_is_too_small_for_all_makes_them_wait_and_changes_nothing(
    registry, serving, eventually, reading, answering
):
    cases = [([prompt(PAGE + key, key), prompt(3, key)], {"new": 9, "seed": key}) for key in range(6)]
    settings = {"temperature": 1.0, "penalty": 1.2, "pause_ms": 3}
    with serving(registry, "scribe", ONE) as served:
        expected = [write(served, prompts, **params, **settings) for prompts, params in cases]
    placed = [lm(["a"], "prefill", **reading), lm(["b"], "fork", "decode", **answering)]
    with serving(registry, "scribe", placed) as served:
        tickets = [submitted(served, prompts, **params, **settings) for prompts, params in cases]
        if answering:
            assert eventually(lambda: served.metric("mstar_kv_requests_parked", worker="b"))
        assert [written(ticket) for ticket in tickets] == expected


apart = pytest.mark.parametrize("server", ["prefill and decode apart"], indirect=True)
apart_in_processes = pytest.mark.parametrize("server", ["prefill and decode in two processes"], indirect=True)


@apart
def test_a_request_that_is_aborted_while_it_leaves_is_free_on_every_worker(server, nodes):
    nodes.PACKING.clear()
    nodes.GATE.clear()
    ticket = submitted(server, [prompt(3 * PAGE)], gate=True)
    assert nodes.PACKING.wait(PATIENCE_S)
    ticket.cancel()
    with pytest.raises(Cancelled):
        list(ticket)
    nodes.GATE.set()
    assert server.at_rest()


@apart
def test_requests_that_are_aborted_at_any_time_of_a_move_are_free_and_change_nothing(server):
    rounds = [prompt(PAGE + 1)] * 6
    expected = write(server, rounds, temperature=1.0, new=3)
    for delay in range(40):
        beside = submitted(server, rounds, temperature=1.0, new=3)
        aborted = submitted(server, [prompt(3 * PAGE)] * 30, new=2, seed=delay)
        next(iter(aborted))
        time.sleep(delay / 10_000)
        aborted.cancel()
        with pytest.raises(Cancelled):
            list(aborted)
        assert written(beside) == expected
    assert server.at_rest()


WRONGS = {
    "no pack": "Scribe keeps state of its own for each request; to be placed in two groups it must implement pack",
    "pack": "node 'lm' failed to hand the request over to another worker: RuntimeError: told to fail",
    "unsendable": "node 'lm' failed to hand the request over to another worker: TypeError: .* Tensor",
    "unpack": "node 'lm' failed to take the request over from another worker: RuntimeError: told to fail",
}


@apart
@pytest.mark.parametrize("wrong", WRONGS)
def test_a_node_that_cannot_hand_over_fails_its_request_only(server, wrong, caplog):
    rounds = [prompt(5), prompt(3)]
    expected = write(server, rounds)
    beside = submitted(server, rounds)
    with pytest.raises(NodeFailed, match=WRONGS[wrong]):
        list(submitted(server, rounds, wrong=wrong))
    assert written(beside) == write(server, rounds) == expected
    assert server.at_rest()


def process_of(worker):
    """The id of the process of a worker that this process has started."""
    for each in Path("/proc").glob("[0-9]*"):
        try:
            title = (each / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")[-1].decode()
            parent = (each / "stat").read_text().rpartition(") ")[2].split()[1]
        except OSError:  # it has ended meanwhile
            continue
        if title == f"worker {worker}" and parent == str(os.getpid()):
            return int(each.name)
    raise AssertionError(f"worker {worker!r} has no process")


@apart_in_processes
@pytest.mark.parametrize(
    ("victim", "params"),
    [
        ("a", {"pack_ms": 500, "new": 3}),
        ("b", {"pause_ms": 5, "new": 100, "endless": True}),
        ("a", {"pause_ms": 5, "new": 100, "endless": True}),
    ],
    ids=["it packs", "it holds", "it has handed over"],
)
def test_a_worker_that_is_killed_fails_its_requests_and_leaves_nothing_with_the_other(
    server, eventually, victim, params
):
    expected = write(server, [prompt(5), prompt(3)])
    ticket = submitted(server, [prompt(3 * PAGE)] * 3, **params)
    contents = iter(ticket)
    for _ in range(2 if params["new"] == 3 else 4):
        next(contents)
    os.kill(process_of(victim), signal.SIGKILL)
    server.killed += 1
    with pytest.raises(Unavailable, match=f"worker '{victim}' failed: .* was ended by SIGKILL") as caught:
        list(contents)
    assert caught.value.status == 503
    assert server.at_rest()
    assert eventually(lambda: server.service.health().ready)
    assert write(server, [prompt(5), prompt(3)]) == expected
