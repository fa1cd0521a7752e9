"""A start that ends early leaves nothing behind."""

import dataclasses
import signal
import threading
import time

import pytest

from mstar_core import hookimpl
from mstar_core.client.service import Service
from mstar_core.errors import ConfigurationError, Unavailable
from mstar_core.testing import scripted
from mstar_core.testing.plugins import registry_with
from mstar_core.testing.scripted_nodes import Counter, Reader, Speaker, Writer

NODES = {"reader": Reader, "writer": Writer, "speaker": Speaker, "counter": Counter}


class Plugin:
    """The scripted model, whose nodes are made by `build`."""

    def __init__(self, build):
        self._build = build
        for hook in ("models", "config", "walks", "state_machine", "processor"):
            setattr(self, f"mstar_{hook}", getattr(scripted, f"mstar_{hook}"))

    @hookimpl
    def mstar_nodes(self):
        return [dataclasses.replace(node, factory=self._build) for node in scripted.NODES]


@pytest.fixture(autouse=True)
def interrupts_are_heard():
    """Background jobs of a shell, and their children, ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def start(build, **options):
    return Service.start(["scripted"], registry=registry_with(Plugin(build)), **options)


def test_an_interrupted_start_ends_every_thread():
    def interrupt(context):
        if context.node.name == scripted.NODES[0].name:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.1)
        return NODES[context.node.name](context)

    with pytest.raises(KeyboardInterrupt):
        start(interrupt)


def test_a_start_that_fails_ends_every_thread():
    with pytest.raises(Unavailable, match="worker 'main' failed: ZeroDivisionError"):
        start(lambda context: 1 / 0)


def test_a_trace_that_cannot_be_written_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be written"):
        start(pytest.fail, trace=tmp_path / "absent" / "trace.json")
