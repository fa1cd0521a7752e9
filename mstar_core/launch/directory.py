"""The directory of a server's ipc sockets: private, named after its owner, and swept when its owner has died.

    /tmp/mstar-PID-START-xxxxxxxx/      START: the owner's start time, so that a number used again means no confusion
        conductor  frontend  worker-0.1  ...

The owner holds a lock on the directory for as long as it lives. One whose owner cannot be found, and which nobody has
locked (the owner may live in another PID namespace that shares this directory's parent), is left from a server that
was killed together with its children.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

SOCKET_PATH_BYTES = 107
"""The longest path of a Unix socket: `sun_path` has 108 bytes, one of them the closing zero (unix(7))."""

_LONGEST_NAME = 40
"""Of a directory: `mstar-`, a PID of 7 digits, a time of 15, 8 random characters, and what separates them."""

_LONGEST_SOCKET_NAME = 24
"""`worker-`, two numbers of 7 digits each, and what separates them."""

_NAME = re.compile(r"mstar-(\d+)-(\d+)-\w+")


class SocketDirectory:
    """A new directory for the sockets of one server, or of one host's workers. Sweeps those of dead owners first."""

    def __init__(self) -> None:
        parent = _parent()
        sweep(parent)
        pid = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=f"mstar-{pid}-{start_time(pid)}-", dir=parent))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def endpoint(self, name: str) -> str:
        """The endpoint of a party's socket."""
        assert len(name) <= _LONGEST_SOCKET_NAME
        return f"ipc://{self.path}/{name}"

    def remove(self) -> None:
        """Take the directory away, with whatever is in it."""
        remove(self.path)
        os.close(self._lock)


def remove(path: Path) -> None:
    """Take a directory away; others may be doing the same."""
    shutil.rmtree(path, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove this user's directories whose owners are dead."""
    for path in parent.glob("mstar-*"):
        match = _NAME.fullmatch(path.name)
        if match and _is_ours(path) and start_time(int(match[1])) != int(match[2]) and not _is_locked(path):
            remove(path)


def start_time(pid: int) -> int | None:
    """When a process was started, in clock ticks since the host was (proc(5), `stat`); None for one that is not there.

    A number is given to another process in time; the pair of both is not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(fields[18])


def _parent() -> Path:
    """The directory for temporary files, unless a socket's path would become too long there."""
    room = SOCKET_PATH_BYTES - len("/") - _LONGEST_NAME - len("/") - _LONGEST_SOCKET_NAME
    preferred = tempfile.gettempdir()
    return Path(preferred if len(os.fsencode(preferred)) <= room else "/tmp")


def _is_ours(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:  # gone meanwhile
        return False
    return status.st_uid == os.getuid() and path.is_dir() and not path.is_symlink()


def _is_locked(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
