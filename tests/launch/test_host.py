"""`mstar host`: a server's workers on another host, which is another network namespace where that can be made."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pytest
import zmq

import mstar_core
from mstar_core.launch.host_messages import Attach
from mstar_core.launch.job import Setup
from mstar_core.launch.link import Link
from mstar_core.plugins.plugin_set import PluginSet
from mstar_core.testing.distributions import install
from mstar_core.testing.plugins import environment
from mstar_core.testing.serving import PLUGIN, SCRIPTED, Serving, children, eventually, is_alive, serving
from mstar_core.wire.address import Keys

PATIENCE_S = 30.0

PLACEMENT = """
address: tcp://{here}:0
hosts: {{far: {{address: "{endpoint}"}}}}
workers: {{here: {{device: cpu, threads: 1}}, there: {{device: cpu, threads: 1, host: far}}}}
groups:
  - {{nodes: [reader, writer, counter], worker: here}}
  - {{nodes: [speaker], worker: there}}
"""


class Host:
    """A `mstar host` as a process, maybe in another network namespace."""

    def __init__(self, directory, keys, listen, *, plugin=PLUGIN, within=()):
        directory.mkdir(exist_ok=True)
        install(directory, plugin, SCRIPTED)
        self.log = directory / "host.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-m", "mstar_core", "host", "--listen", listen, "--keys", str(keys)],
                cwd=directory,
                env=environment([directory], [plugin]),
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self.endpoint = self.process.stdout.readline().decode().split()[-1]

    def workers(self):
        """PIDs by title."""
        return {title: pid for pid, title in children(self.process.pid)}

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "cluster.key"
    subprocess.run([sys.executable, "-m", "mstar_core", "keys", str(path)], check=True, capture_output=True)
    return path


@pytest.fixture
def host(tmp_path, keys):
    """On loopback: to the server it is another host all the same."""
    started = Host(tmp_path / "host", keys, "tcp://127.0.0.1:0")
    yield started
    started.close()


@contextmanager
def served(directory, keys, endpoint, *options, here="127.0.0.1"):
    directory.mkdir()
    placement = PLACEMENT.format(here=here, endpoint=endpoint)
    with serving(directory, "--keys", str(keys), *options, placement=placement) as server:
        yield server


@pytest.fixture
def server(tmp_path, host, keys):
    with served(tmp_path / "server", keys, host.endpoint) as running:
        yield running


def refused_start(directory, keys, endpoint, *options):
    """The log of a server that does not come up."""
    directory.mkdir()
    placement = PLACEMENT.format(here="127.0.0.1", endpoint=endpoint)
    server = Serving(directory, "--keys", str(keys), *options, placement=placement)
    try:
        assert server.wait(PATIENCE_S) == 1
        assert server.left() == []
        return server.log.read_text()
    finally:
        server.close()


def generate(server):
    body = {"model": "scripted", "input": "Hello.", "parameters": {"items": 4, "rounds": 2, "seed": 1}}
    return httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S)


def ready(server):
    return httpx.get(f"{server.url}/health").status_code == 200


def ip(*words):
    return subprocess.run(["ip", *words], check=False, capture_output=True).returncode == 0


@pytest.fixture
def namespace():
    """Another network namespace: what runs a command there, this side's address, and that side's."""
    name, ours, theirs = (f"{kind}{os.getpid()}" for kind in ("mstar-ns", "mva", "mvb"))
    here, there = "10.213.77.1", "10.213.77.2"
    if os.getuid() != 0 or not ip("netns", "add", name):
        pytest.skip("network namespaces cannot be made here")
    try:
        made = [
            ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name),
            ip("addr", "add", f"{here}/24", "dev", ours),
            ip("link", "set", ours, "up"),
            ip("-n", name, "addr", "add", f"{there}/24", "dev", theirs),
            ip("-n", name, "link", "set", theirs, "up"),
            ip("-n", name, "link", "set", "lo", "up"),
        ]
        if not all(made):
            pytest.skip("virtual Ethernet pairs cannot be made here")
        yield ["ip", "netns", "exec", name], here, there
    finally:
        ip("netns", "del", name)


def test_a_worker_on_another_host_serves_over_tcp(tmp_path, keys, namespace):
    within, here, there = namespace
    host = Host(tmp_path / "host", keys, f"tcp://{there}:7700", within=within)
    try:
        with served(tmp_path / "server", keys, host.endpoint, here=here) as server:
            (worker,) = host.workers().values()
            assert os.readlink(f"/proc/{worker}/ns/net") != os.readlink("/proc/self/ns/net")
            outputs = generate(server).json()["outputs"]
            assert [(output["type"], output["shape"]) for output in outputs] == [("tensor", [2]), ("audio", [4 * 240])]
            os.kill(worker, signal.SIGKILL)
            assert eventually(lambda: not ready(server), PATIENCE_S)
            assert eventually(lambda: ready(server), PATIENCE_S)
            assert generate(server).json()["outputs"] == outputs
            server.interrupt()
            assert server.wait(PATIENCE_S) == 0
            assert server.left() == []
        assert eventually(lambda: not host.workers(), PATIENCE_S)
    finally:
        host.close()


def test_a_host_ends_the_workers_of_a_killed_server_and_serves_the_next(tmp_path, host, server, keys):
    (worker,) = host.workers().values()
    server.process.kill()
    assert eventually(lambda: not is_alive(worker), PATIENCE_S)
    with served(tmp_path / "next", keys, host.endpoint) as other:
        assert generate(other).status_code == 200
    assert "was not heard of for 5 s" in host.log.read_text()


def test_a_host_that_is_killed_takes_its_workers_with_it_and_they_come_back_with_the_next(tmp_path, host, server, keys):
    (worker,) = host.workers().values()
    host.close()
    assert eventually(lambda: not is_alive(worker), PATIENCE_S)
    assert eventually(lambda: not ready(server), PATIENCE_S)
    another = Host(tmp_path / "host", keys, host.endpoint)
    try:
        assert eventually(lambda: ready(server), PATIENCE_S)
        assert generate(server).status_code == 200
    finally:
        another.close()


def test_a_host_that_is_told_to_end_says_so_and_leaves_nothing(host, server):
    (worker,) = host.workers().values()
    host.process.send_signal(signal.SIGTERM)
    assert host.process.wait(PATIENCE_S) == 0
    assert not is_alive(worker)
    assert eventually(lambda: "which has gone" in server.log.read_text(), PATIENCE_S)


def test_a_server_that_is_told_to_end_takes_its_workers_elsewhere_with_it(host, server):
    server.interrupt()
    assert server.wait(PATIENCE_S) == 0
    assert eventually(lambda: not host.workers(), PATIENCE_S)
    assert "WARNING" not in server.log.read_text()


def test_a_second_server_is_refused_while_the_first_one_is_served(tmp_path, host, server, keys):
    log = refused_start(tmp_path / "second", keys, host.endpoint)
    assert f"host 'far' at {host.endpoint} serves another server" in log
    assert generate(server).status_code == 200


def test_a_host_with_other_plugins_refuses_and_the_server_tells_the_difference(tmp_path, keys):
    host = Host(tmp_path / "host", keys, "tcp://127.0.0.1:0", plugin="mstar-other")
    try:
        log = refused_start(tmp_path / "server", keys, host.endpoint)
    finally:
        host.close()
    assert "worker 'there' failed: its plugins are not those of the server" in log
    assert "mstar-other: absent in the parent, 1.0 in the worker" in log


def test_a_server_with_another_key_gets_no_answer(tmp_path, host):
    other = tmp_path / "other.key"
    Keys.generate().save(other)
    log = refused_start(tmp_path / "server", other, host.endpoint, "--start-timeout", "8")
    assert "does not answer: is 'mstar host' running there, with the same keys?" in log
    assert "was not ready within 8 s" in log
    assert host.workers() == {}


def attach():
    setup = Setup(placement="{}", checkpoints={}, plugins=PluginSet("0", ()))
    return Attach("session", "server", mstar_core.__version__, setup)


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


def answer_to(link):
    """What comes within a while of saying something; None for nothing."""
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        link.send(attach())
        for _, message in link.receive(0.1):
            return message
    return None


@pytest.mark.parametrize(("right", "answered"), [(True, True), (False, False)], ids=["right key", "other key"])
def test_a_peer_is_answered_only_with_the_right_key(host, keys, context, right, answered):
    link = Link(context, host.endpoint, Keys.load(keys) if right else Keys.generate(), listens=False)
    answer = answer_to(link)
    link.close()
    assert (answer is not None) == answered


def test_a_peer_without_a_key_gets_nothing(host, context):
    socket = context.socket(zmq.DEALER)
    socket.connect(host.endpoint)
    socket.send(b"anything")
    assert socket.poll(2000) == 0
    socket.close(linger=0)
    assert host.process.poll() is None


def test_workers_elsewhere_without_keys_are_refused(tmp_path):
    server = Serving(tmp_path, placement=PLACEMENT.format(here="127.0.0.1", endpoint="tcp://127.0.0.1:9"))
    assert server.wait(PATIENCE_S) == 2
    assert "workers on other hosts need keys: make a file with 'mstar keys FILE'" in server.log.read_text()
    server.close()


@pytest.mark.parametrize("listen", ["tcp://0.0.0.0:7700", "tcp://192.0.2.1:7700"])
def test_an_address_that_no_server_can_reach_is_refused(keys, listen):
    command = [sys.executable, "-m", "mstar_core", "host", "--listen", listen, "--keys", str(keys)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 2
    assert listen in result.stderr


def test_keys_that_are_there_are_not_overwritten(keys):
    before = keys.read_text()
    result = subprocess.run(
        [sys.executable, "-m", "mstar_core", "keys", str(keys)], check=False, capture_output=True, text=True
    )
    assert (result.returncode, keys.read_text()) == (2, before)
    assert "exists" in result.stderr
