import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mstar_core.launch.directory import SOCKET_PATH_BYTES, SocketDirectory, start_time, sweep

HOLD = "import fcntl, os, sys, time; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(flush=True)"


@pytest.fixture
def directory():
    made = SocketDirectory()
    yield made
    made.remove()


def owned_by(parent, pid, started):
    path = parent / f"mstar-{pid}-{started}-abcd1234"
    path.mkdir()
    (path / "conductor").touch()
    return path


@pytest.fixture
def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_the_user_may_enter_the_directory_and_its_name_tells_the_owner(directory):
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert directory.path.name.startswith(f"mstar-{os.getpid()}-{start_time(os.getpid())}-")


def test_a_removed_directory_is_gone_with_its_content(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = SocketDirectory()
    Path(made.endpoint("conductor").removeprefix("ipc://")).touch()
    made.remove()
    assert not made.path.exists()


def test_endpoints_fit_into_a_unix_socket_however_long_the_temporary_directory_is(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    made = SocketDirectory()
    try:
        endpoint = made.endpoint("worker-" + "9" * 17)
        assert len(os.fsencode(endpoint.removeprefix("ipc://"))) <= SOCKET_PATH_BYTES
    finally:
        made.remove()


def test_the_next_start_removes_the_directory_of_a_dead_owner(tmp_path, monkeypatch, dead_pid):
    dead = owned_by(tmp_path, dead_pid, 123)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("mstar_core.launch.directory.SOCKET_PATH_BYTES", 1000)  # pytest's directories are long
    SocketDirectory().remove()
    assert not dead.exists()


def test_a_pid_that_was_given_to_another_process_is_no_living_owner(tmp_path):
    reused = owned_by(tmp_path, os.getpid(), start_time(os.getpid()) - 1)
    sweep(tmp_path)
    assert not reused.exists()


def test_the_directory_of_a_living_owner_stays(tmp_path):
    living = owned_by(tmp_path, os.getpid(), start_time(os.getpid()))
    sweep(tmp_path)
    assert living.exists()


def test_a_directory_that_somebody_has_locked_stays_though_its_owner_cannot_be_seen(tmp_path, dead_pid):
    elsewhere = owned_by(tmp_path, dead_pid, 123)
    command = [sys.executable, "-c", f"{HOLD}; sys.stdin.read()", str(elsewhere)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        sweep(tmp_path)
        assert elsewhere.exists()
        holder.communicate(b"")
    sweep(tmp_path)
    assert not elsewhere.exists()


def test_other_files_and_links_are_left_alone(tmp_path, dead_pid):
    (tmp_path / "mstar-notes").mkdir()
    (tmp_path / "target").mkdir()
    link = tmp_path / f"mstar-{dead_pid}-1-abcd1234"
    link.symlink_to(tmp_path / "target")
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [link.name, "mstar-notes", "target"]
