"""Runs probes: one process for each plugin, a few at a time, each with a time limit."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from mstar_core.env import block_command
from mstar_core.plugins.discovery import FoundPlugin
from mstar_core.plugins.probe import Job, Verdict
from mstar_core.plugins.report import Status


def probe_all(plugins: Sequence[FoundPlugin], *, static: bool, timeout: float) -> list[Verdict]:
    """Examine each plugin in a process of its own; one that does not finish within `timeout` seconds is broken."""
    with (
        tempfile.TemporaryDirectory(prefix="mstar-check-") as scratch,
        ThreadPoolExecutor(max_workers=os.cpu_count()) as threads,
    ):
        return list(threads.map(lambda found: _probe(found, Path(scratch), static, timeout), plugins))


def _probe(found: FoundPlugin, scratch: Path, static: bool, timeout: float) -> Verdict:
    job, result, log = (scratch / f"{found.name}.{suffix}" for suffix in ("job", "result", "log"))
    job.write_bytes(msgspec.json.encode(Job(found=found, static=static)))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mstar_core.plugins.probe", str(job), str(result)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return _dead(found, f"its import or one of its hooks did not finish within {timeout:g} s", log)
    if result.exists():
        return msgspec.json.decode(result.read_bytes(), type=Verdict)
    ended = f"by signal {-status}" if status < 0 else f"with exit status {status}"
    return _dead(found, f"its import or one of its hooks ended the process, {ended}", log)


def _dead(found: FoundPlugin, reason: str, log: Path) -> Verdict:
    details = log.read_text(errors="replace").strip()
    return Verdict(report=found.report(Status.BROKEN, reason, block_command(found.name), details))
