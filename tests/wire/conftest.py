import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

import mstar_core
from mstar_core.wire.address import Keys
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Address


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture(scope="session")
def keys():
    return Keys.generate()


@pytest.fixture(params=["inproc", "ipc", "tcp"])
def boxes(context, request, tmp_path, keys):
    """Makes mailboxes, as between threads, processes or hosts, that are closed at the end."""
    made = []

    def make(name):
        match request.param:
            case "inproc":
                box = Mailbox(context, f"inproc://{name}")
            case "ipc":
                box = Mailbox(context, f"ipc://{tmp_path}/{name}")
            case "tcp":
                box = Mailbox(context, f"ipc://{tmp_path}/{name}", far="tcp://127.0.0.1:0", keys=keys, host=name)
        made.append(box)
        return box

    yield make
    for box in made:
        box.close()


@pytest.fixture
def children():
    """Starts parties in processes of their own (`child.py`); each with its `address`; ended at the end."""
    started = []

    def start(mailbox, role, *arguments):
        command = [sys.executable, Path(__file__).with_name("child.py"), json.dumps(mailbox), json.dumps(role)]
        child = subprocess.Popen(
            [*command, json.dumps(arguments)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(mstar_core.__file__).parent.parent)},
        )
        started.append(child)
        child.address = Address(*json.loads(child.stdout.readline()))
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()
