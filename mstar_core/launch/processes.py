"""Parties as processes of this host, which talk over `ipc://`: `mstar serve`, and `mstar host` for another server."""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from mstar_core.launch.base import LocalLauncher, Party, Watch
from mstar_core.launch.directory import SocketDirectory
from mstar_core.launch.job import Bound, ConductorJob, Job, PartyJob, Report, Setup
from mstar_core.launch.lifeline import GRACE_S

_REPORT_BYTES = 65536
"""What is read at once of a child's reports; a pipe of Linux holds as much (pipe(7))."""


class ProcessLauncher(LocalLauncher):
    """Starts child processes. `far` is where workers listen for other hosts (`tcp://ADDRESS:0`), or ""."""

    patience_s = GRACE_S + 1.0

    def __init__(self, setup: Setup, far: str = "") -> None:
        self._setup = setup
        self._far = far
        self._directory = SocketDirectory()
        self._numbers = itertools.count(1)

    def near(self, name: str) -> str:
        """An ipc endpoint in this launcher's directory."""
        return self._directory.endpoint(name)

    def start(self, party: PartyJob, watch: Watch) -> Party:
        """Start a process."""
        if isinstance(party, ConductorJob):
            near, far = self.near("conductor"), party.far
        else:
            near, far = self.near(f"worker-{next(self._numbers)}"), self._far
        job = Job(setup=self._setup, party=party, near=near, far=far, directory=str(self._directory.path))
        return _Child(job, watch)

    def close(self) -> None:
        """Remove the directory of the sockets."""
        self._directory.remove()


class _Child(Party):
    """A child process, and the thread that waits for what it reports and for its end."""

    def __init__(self, job: Job, watch: Watch) -> None:
        self._watch = watch
        self._last_words = ""
        self._lock = threading.Lock()
        with _interrupts_kept_back():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mstar_core.launch.child", job.party.title],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
            )
        self._descriptor: int | None = os.pidfd_open(self._process.pid)
        task = msgspec.json.encode(job) + b"\n"
        threading.Thread(target=self._follow, args=(task,), name=f"watch {job.party.title}", daemon=True).start()

    def stop(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if self._descriptor is not None:
                signal.pidfd_send_signal(self._descriptor, number)

    def _follow(self, task: bytes) -> None:
        """The child's whole life, on a thread."""
        stdin, stdout, descriptor = self._process.stdin, self._process.stdout, self._descriptor
        assert stdin is not None
        assert stdout is not None
        assert descriptor is not None
        with stdin, stdout:
            with suppress(BrokenPipeError):  # a child that ends at once is told of by its exit status
                _write(stdin.fileno(), task)
            for report in _reports(stdout.fileno(), descriptor):
                if isinstance(report, Bound):
                    self._watch.bound(report.address)
                else:  # it has nothing more to do, and may take its time for that
                    self._last_words = report.reason
                    self.kill()
            status = self._process.wait()
            with self._lock:
                os.close(descriptor)
                self._descriptor = None
        self._watch.ended(self._last_words or how_it_ended(status))


def _write(pipe: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _reports(pipe: int, process: int) -> Iterator[Report]:
    """What a child reports until it has ended. Its pipe may stay open beyond that, in processes that it has forked."""
    os.set_blocking(pipe, False)
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.register(process, select.POLLIN)
    unfinished, ended = b"", False
    while not ended:
        ready = {descriptor for descriptor, _ in poll.poll()}
        ended = process in ready
        if pipe in ready:
            data = os.read(pipe, _REPORT_BYTES)
            if not data:
                poll.unregister(pipe)
            *lines, unfinished = (unfinished + data).split(b"\n")
            for line in lines:
                yield msgspec.json.decode(line, type=Report)


def how_it_ended(status: int) -> str:
    """What a process's exit status says, as the end of a sentence."""
    if status >= 0:
        return f"ended with exit status {status}"
    name = signal.Signals(-status).name
    return f"was ended by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")


@contextmanager
def _interrupts_kept_back() -> Iterator[None]:
    """Keep SIGINT from processes that are started meanwhile, until they have said what they want to do with it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
