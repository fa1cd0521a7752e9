"""The process of a party, driven as its parent drives it."""

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
import zmq

import mstar_core
from mstar_core.launch.job import Bound, ConductorJob, Job, Report, Setup, WorkerJob
from mstar_core.plugins.plugin_set import PluginSet
from mstar_core.spec.placement import Placement
from mstar_core.testing.distributions import install
from mstar_core.testing.plugins import environment
from mstar_core.testing.serving import PLUGIN, SCRIPTED
from mstar_core.wire.address import host_identity
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Address, AskMetrics

PATIENCE_S = 20.0


class Child:
    """A child process and its reports."""

    def __init__(self, site, job):
        self.directory = Path(job.directory)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mstar_core.launch.child", job.party.title],
            env=environment([site], [PLUGIN]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.process.stdin.write(msgspec.json.encode(job) + b"\n")
        self.process.stdin.flush()

    def report(self):
        return msgspec.json.decode(self.process.stdout.readline(), type=Report)

    def maps(self):
        return Path(f"/proc/{self.process.pid}/maps").read_text()

    def ended(self):
        return self.process.wait(PATIENCE_S), self.process.stderr.read().decode()

    def close(self):
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    directory = tmp_path_factory.mktemp("site")
    install(directory, PLUGIN, SCRIPTED)
    return directory


@pytest.fixture
def sockets():
    directory = tempfile.mkdtemp()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def job(sockets):
    """The Conductor's, or with a name a worker's."""
    same = PluginSet(core=mstar_core.__version__, plugins=((PLUGIN, "1.0"),))
    nobody = Address(host_identity(), f"ipc://{sockets}/nobody")

    def make(worker="", plugins=same):
        party = ConductorJob(frontends=(nobody,))
        if worker:
            party = WorkerJob(name=worker, conductor=nobody, frontends=(nobody,))
        setup = Setup(
            placement=Placement().model_dump_json(),
            checkpoints={"scripted": "tiny"},
            plugins=plugins,
        )
        return Job(setup=setup, party=party, near=f"ipc://{sockets}/party", far="", directory=sockets)

    return make


@pytest.fixture
def child(site, job):
    started = []

    def start(**what):
        started.append(Child(site, job(**what)))
        return started[-1]

    yield start
    for each in started:
        each.close()


def answer_of(sockets):
    """Who answers a question to the party, once it is in its loop."""
    context = zmq.Context()
    with Mailbox(context, f"ipc://{sockets}/asker") as mailbox:
        mailbox.send(Address(host_identity(), f"ipc://{sockets}/party"), AskMetrics(1, mailbox.address))
        (answer,) = mailbox.receive(PATIENCE_S)
    context.term()
    return answer.party


def test_a_conductor_reports_its_mailbox_and_never_imports_torch(child, sockets):
    conductor = child()
    assert conductor.report() == Bound(Address(host_identity(), f"ipc://{sockets}/party"))
    assert answer_of(sockets) == "conductor"
    assert "libtorch" not in conductor.maps()
    conductor.process.send_signal(signal.SIGTERM)
    assert conductor.ended() == (0, "")


@pytest.mark.parametrize("worker", ["", "main"])
def test_a_child_with_other_plugins_than_its_parents_refuses_and_tells_the_difference(child, worker):
    absent = PluginSet(core="0.0.1", plugins=((PLUGIN, "1.0"), ("mstar-absent", "3.2")))
    refusing = child(worker=worker, plugins=absent)
    assert isinstance(refusing.report(), Bound)
    reason = refusing.report().reason
    assert "mstar-absent: 3.2 in the parent, absent in the worker" in reason
    assert "mstar-core: 0.0.1 in the parent" in reason
    assert PLUGIN not in reason
    assert refusing.ended() == (1, "")


def test_a_child_leaves_when_its_parent_is_gone_and_takes_the_sockets_directory_with_it(child):
    conductor = child()
    conductor.report()
    conductor.process.stdin.close()
    assert conductor.ended() == (0, "")
    assert not conductor.directory.exists()


def test_a_child_that_is_loading_is_gone_soon_after_its_parent(child):
    worker = child(worker="main")
    worker.report()
    worker.process.stdin.close()
    worker.ended()
    assert not worker.directory.exists()


def test_ctrl_c_is_left_to_the_parent(child):
    conductor = child()
    conductor.report()
    conductor.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        conductor.process.wait(0.5)
    conductor.process.send_signal(signal.SIGTERM)
    assert conductor.ended() == (0, "")
