"""The process of a Conductor or a worker.

    python -m mstar_core.launch.child TITLE < JOB

reads a `Job` from its standard input and is that party until it is told to stop, or until its parent is gone. TITLE is
for those who list processes. The Conductor's process never imports torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import zmq

from mstar_core import log
from mstar_core.errors import PluginError
from mstar_core.launch.job import Bound, ConductorJob, Failed, Job, Report, Setup
from mstar_core.launch.lifeline import Lifeline, ignore_interrupts
from mstar_core.launch.parties import failure, run_conductor, run_worker, transports_of, worker_sources
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.plugins.registry import Registry, load_registry
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.placement import Placement
from mstar_core.wire.address import Keys
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Stop


class Reports:
    """What is told to the parent, by the pipe that was standard output; standard output becomes standard error, so
    that what a plugin prints disturbs nobody."""

    def __init__(self) -> None:
        self._pipe = os.dup(1)
        os.dup2(2, 1)

    def send(self, report: Report) -> None:
        """Send a line."""
        os.write(self._pipe, msgspec.json.encode(report) + b"\n")


def main() -> int:
    """Be the party of the job; returns the exit status."""
    ignore_interrupts()
    reports = Reports()
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    log.configure(job.setup.log_format, job.setup.log_level)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        keys = Keys.load(Path(job.setup.keys)) if job.setup.keys else None
        with Mailbox(context, job.near, far=job.far, keys=keys) as mailbox:
            live(job, mailbox, reports)
        status = 0
    except Exception as error:  # isolation boundary: this process; its parent is told why it ends
        reports.send(Failed(failure(job.party.title, error)))
        status = 1
    context.destroy(linger=0)
    return status


def live(job: Job, mailbox: Mailbox, reports: Reports) -> None:
    """Be the party, as long as the parent lives and wants it."""
    waker = mailbox.waker()
    lifeline = Lifeline(lambda: waker.send(Stop()), Path(job.directory))
    reports.send(Bound(mailbox.address))
    try:
        run(job, mailbox)
    finally:
        lifeline.leaving()
        waker.close()


def run(job: Job, mailbox: Mailbox) -> None:
    """Assemble the models as the parent did, and be the party. Raises `PluginError` when the plugins differ."""
    registry = load_registry()
    difference = job.setup.plugins.difference(registry.plugin_set)
    if difference:
        raise PluginError(f"its plugins are not those of the server:\n{difference}")
    placement = Placement.model_validate_json(job.setup.placement)
    models = assembled(registry, job.setup)
    if isinstance(job.party, ConductorJob):
        run_conductor(job.party, mailbox, [spec for spec, _ in models], placement)
    else:
        sources, transports = worker_sources(registry, models), transports_of(registry, placement)
        run_worker(job.party, mailbox, sources, placement, transports=transports)


def assembled(registry: Registry, setup: Setup) -> list[tuple[ModelSpec, Path]]:
    """Every model's specification and its checkpoint's directory."""
    models = []
    for name, checkpoint in setup.checkpoints.items():
        directory = locate(registry.card(name), checkpoint)
        models.append((assemble(registry, name, directory), directory))
    return models


if __name__ == "__main__":
    sys.exit(main())
