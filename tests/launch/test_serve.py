"""`mstar serve` as a process: what dies comes back, what is told to end ends, and nothing is left behind."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from mstar_core.testing.serving import SCRIPTED, Serving, eventually, is_alive, serving

PATIENCE_S = 30.0

TWO_WORKERS = """
workers: {writing: {device: cpu, threads: 1}, speaking: {device: cpu, threads: 1}}
groups:
  - {nodes: [reader, writer, counter], worker: writing}
  - {nodes: [speaker], worker: speaking}
"""

FOREVER = {"items": 100_000, "max_items": 100_000, "delay_ms": 20}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), placement=TWO_WORKERS) as server:
        yield server


@pytest.fixture
def server(shared):
    """A server on two workers that is whole again."""
    assert eventually(lambda: health(shared)[0] == 200, PATIENCE_S)
    return shared


def health(server):
    answer = httpx.get(f"{server.url}/health")
    return answer.status_code, answer.json()


def generate(server, timeout=60.0, **parameters):
    body = {"model": "scripted", "input": "Hello.", "parameters": parameters}
    return httpx.post(f"{server.url}/generate", json=body, timeout=timeout)


def restarts(server, party):
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    (line,) = (line for line in lines if line.startswith("mstar_restarts_total") and f'party="{party}"' in line)
    return float(line.split()[-1])


def has_libtorch(pid):
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def busy_workers(server):
    """Whether a request runs."""
    return 'mstar_requests_running{model="scripted",party="conductor"} 1.0' in httpx.get(f"{server.url}/metrics").text


def test_each_party_is_a_process_and_only_workers_import_torch(server):
    parties = server.parties()
    assert set(parties) == {"conductor", "worker writing", "worker speaking"}
    torch = {title for title, pid in parties.items() if has_libtorch(pid)}
    assert torch == {"worker writing", "worker speaking"}
    assert not has_libtorch(server.process.pid)


def test_the_start_says_what_each_worker_runs_and_the_memory_that_it_took(server):
    log = server.log.read_text()
    assert "worker writing (cpu): reader, writer, counter of scripted; " in log
    assert "worker speaking (cpu): speaker of scripted; " in log
    assert "MiB on the host" in log
    assert server.ready.startswith("serving scripted on http://127.0.0.1:")


def test_what_children_print_does_not_reach_the_servers_output(server):
    for pid in server.parties().values():
        assert os.readlink(f"/proc/{pid}/fd/1") == str(server.log)


@pytest.mark.parametrize("title", ["worker writing", "worker speaking", "conductor"])
def test_a_killed_party_fails_its_requests_within_two_seconds_and_comes_back(server, title):
    party = title.removeprefix("worker ")
    before, others = restarts(server, party), server.parties()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(generate, server, **FOREVER)
        assert eventually(lambda: busy_workers(server), PATIENCE_S)
        killed = time.monotonic()
        pid = server.kill(title)
        answer = waiting.result()
        assert time.monotonic() - killed < 2.0
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "unavailable")
    assert "SIGKILL" in error["message"]
    assert eventually(lambda: health(server)[0] == 200 and restarts(server, party) == before + 1, PATIENCE_S)
    after = server.parties()
    assert after.pop(title) != pid
    assert after.items() <= others.items()
    assert generate(server, items=3).status_code == 200


def test_health_is_red_while_a_worker_is_away_and_says_why(server):
    server.kill("worker speaking")
    assert eventually(lambda: health(server)[0] == 503, PATIENCE_S)
    told = health(server)[1]
    assert "SIGKILL" in told["workers"]["speaking"]["state"]
    assert told["workers"]["writing"]["state"] == "ready"
    assert "worker 'speaking'" in told["models"]["scripted"]
    assert generate(server).status_code == 503


def test_a_worker_that_lives_and_does_not_answer_is_ended_and_comes_back(server):
    before, pid = restarts(server, "writing"), server.parties()["worker writing"]
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: restarts(server, "writing") == before + 1, PATIENCE_S)
    assert not is_alive(pid)
    assert eventually(lambda: health(server)[0] == 200, PATIENCE_S)
    assert generate(server, items=3).status_code == 200
    assert "worker 'writing' was silent for" in server.log.read_text()


def test_a_conductor_that_lives_and_does_not_answer_is_ended_and_replaced(server):
    before, pid = restarts(server, "conductor"), server.parties()["conductor"]
    os.kill(pid, signal.SIGSTOP)
    assert generate(server).status_code == 503
    assert eventually(lambda: health(server)[0] == 200 and restarts(server, "conductor") == before + 1, PATIENCE_S)
    assert not is_alive(pid)
    assert generate(server, items=3).status_code == 200
    assert "the Conductor was silent for" in server.log.read_text()


@pytest.fixture
def one(tmp_path):
    """A server of its own."""
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def load(one):
    """A request that goes on for ever, and that has begun."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(generate, one, **FOREVER)
        assert eventually(lambda: busy_workers(one), PATIENCE_S)
        yield running
        one.process.kill()


def ask_to_end(server, number):
    """As a terminal or an init system does."""
    if number == signal.SIGINT:
        server.interrupt()
    else:
        server.process.send_signal(number)


def refuses(server):
    """Whether new connections are refused."""
    try:
        httpx.get(f"{server.url}/health/live")
    except httpx.TransportError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_idle_server_and_leaves_nothing(one, number):
    ask_to_end(one, number)
    assert one.wait(PATIENCE_S) == 0
    assert one.left() == []
    assert one.log.read_text().endswith("stopped\n")
    assert "Traceback" not in one.log.read_text()


def test_a_second_signal_cuts_running_requests_off_and_leaves_nothing(one, load):
    ask_to_end(one, signal.SIGINT)
    assert eventually(lambda: refuses(one), PATIENCE_S)
    assert one.process.poll() is None
    ask_to_end(one, signal.SIGINT)
    assert one.wait(PATIENCE_S) == 0
    assert isinstance(load.exception(PATIENCE_S), httpx.RemoteProtocolError)
    assert one.left() == []


def test_a_first_signal_lets_a_running_request_end(one):
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(generate, one, items=50, delay_ms=20)
        assert eventually(lambda: busy_workers(one), PATIENCE_S)
        ask_to_end(one, signal.SIGTERM)
        assert running.result().status_code == 200
    assert one.wait(PATIENCE_S) == 0
    assert one.left() == []


def test_a_worker_that_cannot_leave_is_ended(one):
    os.kill(one.parties()["worker main"], signal.SIGSTOP)
    one.process.send_signal(signal.SIGTERM)
    assert one.wait(PATIENCE_S) == 0
    assert one.left() == []


def test_a_killed_server_takes_everything_with_it(one, load):
    one.parties()
    one.process.kill()
    one.wait(PATIENCE_S)
    assert eventually(lambda: one.left() == [], 5.0), one.left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_is_told_to_end_while_it_starts_leaves_nothing(tmp_path, number):
    server = Serving(tmp_path)
    assert eventually(lambda: "worker main" in server.parties(), PATIENCE_S)
    ask_to_end(server, number)
    assert server.wait(PATIENCE_S) == 128 + number
    assert server.left() == []
    assert "Traceback" not in server.log.read_text()
    server.close()


BROKEN = (
    SCRIPTED.replace("mstar_nodes, ", "")
    + """
import dataclasses
from mstar_core import hookimpl
from mstar_core.testing.scripted import NODES

@hookimpl
def mstar_nodes():
    return [dataclasses.replace(node, factory="mstar_scripted:build_" + node.name) for node in NODES]

def build_reader(context):
    raise RuntimeError("the reader has no glasses")
"""
)
ENDLESS = BROKEN.replace('raise RuntimeError("the reader has no glasses")', "import time; time.sleep(3600)")
DEADLY = BROKEN.replace('raise RuntimeError("the reader has no glasses")', "import os; os._exit(3)")


def refused_start(directory, source, *options):
    server = Serving(directory, *options, source=source)
    try:
        status = server.wait(PATIENCE_S)
        assert server.left() == []
        return status, server.log.read_text()
    finally:
        server.close()


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        (BROKEN, (), "worker 'main' failed: RuntimeError: the reader has no glasses"),
        (BROKEN, ("--in-process",), "worker 'main' failed: RuntimeError: the reader has no glasses"),
        (DEADLY, (), "worker 'main' ended with exit status 3"),
        (ENDLESS, ("--start-timeout", "4"), "worker 'main' was not ready within 4 s"),
    ],
    ids=["raises", "raises in a thread", "ends its process", "never finishes"],
)
def test_a_node_that_cannot_be_loaded_ends_the_start_with_its_reason(tmp_path, source, options, reason):
    status, log = refused_start(tmp_path, source, *options)
    assert status == 1
    assert f"error: the server cannot start: {reason}\n" in log


def test_a_trace_tells_requests_and_batches_of_all_workers(tmp_path):
    trace = tmp_path / "trace.json"
    with serving(tmp_path, "--trace", "trace.json", placement=TWO_WORKERS) as server:
        assert generate(server, items=3).status_code == 200
        assert eventually(lambda: all(name in trace.read_text() for name in ("writing", "speaking")), PATIENCE_S)
        server.interrupt()
        server.wait(PATIENCE_S)
    events = json.loads(trace.read_text())
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} >= {"requests", "writing"}


def test_a_mistake_in_the_placement_is_told_with_file_line_and_key_before_anything_is_loaded(tmp_path):
    server = Serving(tmp_path, placement="groups:\n  - nodes: [speeker]\n")
    assert server.wait(PATIENCE_S) == 1
    assert "placement.yaml:2: groups[0].nodes: model 'scripted' has no node 'speeker'" in server.log.read_text()
    assert server.left() == []
    server.close()
