"""A real `mstar serve` of the scripted model as a process, and what is left of it when it has ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from mstar_core.testing.distributions import install
from mstar_core.testing.plugins import environment

SCRIPTED = """
from mstar_core.testing.scripted import (
    mstar_config, mstar_models, mstar_nodes, mstar_processor, mstar_state_machine, mstar_walks
)
"""
"""The source of a plugin that brings the scripted model to other processes."""

PLUGIN = "mstar-scripted"

_CHILD = b"mstar_core.launch.child"


class Serving:
    """One server. `process` leads a process group of its own, so that Ctrl-C can be sent to all of it.

    `log` is the file of its standard error. After `close`, which everything ends with, nothing may be left.
    """

    def __init__(self, directory: Path, *options: str, placement: str = "", source: str = SCRIPTED) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.ready = ""
        install(directory, PLUGIN, source)
        if placement:
            (directory / "placement.yaml").write_text(placement)
            options = (*options, "--placement", "placement.yaml")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mstar_core", "serve", "scripted", "--port", "0", *options],
                cwd=directory,
                env=environment([directory], [PLUGIN]),
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=_hear_interrupts,  # noqa: PLW1509 (it only sets a signal)
            )
        self.seen: set[int] = set()

    def wait_ready(self) -> None:
        """Read the line that says that requests are answered; raises `AssertionError` with the log when it ends."""
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline().decode()
        assert self.ready, self.log.read_text()
        self.parties()

    @property
    def url(self) -> str:
        """Where it is served."""
        return self.ready.split()[-1]

    def parties(self) -> dict[str, int]:
        """The PID of the Conductor (`conductor`) and of each worker (`worker NAME`) that runs now."""
        found = {title: pid for pid, title in children(self.process.pid)}
        self.seen.update(found.values())
        return found

    def kill(self, title: str) -> int:
        """Kill a party; the PID that it had."""
        pid = self.parties()[title]
        os.kill(pid, signal.SIGKILL)
        return pid

    def interrupt(self) -> None:
        """What Ctrl-C does: SIGINT to every process in the foreground."""
        self.parties()
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self, timeout: float) -> int:
        """The server's exit status, which comes within `timeout` seconds."""
        return self.process.wait(timeout)

    def left(self) -> list[str]:
        """What is there now and should not be, once the server has ended."""
        port = urlsplit(self.url).port if self.ready else None
        sockets = Path(tempfile.gettempdir()).glob(f"mstar-{self.process.pid}-*")
        shared = [path for path in Path("/dev/shm").iterdir() if path.name.startswith("mstar")]
        return [
            *(f"process {pid}" for pid in sorted(self.seen) if is_alive(pid)),
            *map(str, sockets),
            *map(str, shared),
            *([f"port {port}"] if port and not is_free(port) else []),
        ]

    def close(self) -> None:
        """End the server, if it runs, and every process of its group."""
        self.parties()
        self.process.kill()
        self.process.communicate()
        eventually(lambda: not any(map(is_alive, self.seen)), 5.0)


def _hear_interrupts() -> None:
    """Undo what a shell does to its background jobs, and they to their children: SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def serving(directory: Path, *options: str, placement: str = "", source: str = SCRIPTED) -> Iterator[Serving]:
    """A server that answers requests; it may have ended when the block does."""
    server = Serving(directory, *options, placement=placement, source=source)
    try:
        server.wait_ready()
        yield server
    finally:
        server.close()


def children(pid: int) -> Iterator[tuple[int, str]]:
    """The parties among the children of a process: PID and title."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) if _CHILD in words else 0
        except OSError:  # it has ended meanwhile
            continue
        if parent == pid:
            yield int(entry.name), words[words.index(_CHILD) + 1].decode()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_free(port: int) -> bool:
    """Whether a port of loopback can be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def eventually(condition: Callable[[], object], timeout: float) -> bool:
    """Whether a condition comes to hold within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())
