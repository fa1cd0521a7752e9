"""A server whose parties are processes, and what can be seen of them from outside."""

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mstar_core import env
from mstar_core.client.service import Service
from mstar_core.media.pcm import to_pcm
from mstar_core.plugins.registry import Registry, load_registry
from mstar_core.server.settings import ServerSettings
from mstar_core.spec.content import Text
from mstar_core.spec.placement import Placement
from mstar_core.testing import distributions, scripted
from mstar_core.testing.server import http_server
from mstar_core.testing.serving import PLUGIN, SCRIPTED, children

PATIENCE_S = 60.0
"""How long to wait for what must come: only a broken server takes as long, however busy the machine is."""

STALL_S = 2.0
"""How long a client may take nothing of its response: far longer than one that reads, on however busy a machine."""

WORKERS = ("reading", "writing", "speaking")

THREE_WORKERS = {
    "workers": {name: {"device": "cpu", "threads": 1} for name in WORKERS},
    "groups": [
        {"nodes": ["reader", "counter"], "worker": "reading"},
        {"nodes": ["writer"], "worker": "writing"},
        {"nodes": ["speaker"], "worker": "speaking"},
    ],
}

AT_REST = (
    "mstar_requests_open",
    "mstar_requests_running",
    "mstar_requests_waiting",
    "mstar_worker_requests",
    "mstar_worker_load",
    "mstar_ready_calls",
    "mstar_stream_items",
    "mstar_outputs_waiting",
    "mstar_outbox",
    "mstar_tensors_published",
    "mstar_shared_tensors",
    "mstar_shared_bytes",
)
"""Gauges that are 0 in a server that serves nobody."""


@dataclass(frozen=True)
class Footprint:
    """What a process holds: open descriptors by kind, threads, and arenas of shared memory that it has mapped."""

    descriptors: Counter
    threads: int
    arenas: int

    def covers(self, other: "Footprint") -> bool:
        """Whether the other one is not greater in anything."""
        fewer = other.threads <= self.threads and other.arenas <= self.arenas
        return fewer and other.descriptors <= self.descriptors


@dataclass(frozen=True)
class Server:
    """The scripted model over three worker processes, behind a real HTTP server in this process."""

    service: Service
    url: str
    http: httpx.Client
    others: frozenset[int]
    """Processes of servers of other tests."""

    def submit(self, **params):
        return self.service.submit("scripted", [Text("Hello.")], params)

    def speech(self, **fields) -> httpx.Response:
        body = {"model": "scripted", "input": "Hello.", "response_format": "pcm", **fields}
        return self.http.post("/v1/audio/speech", json=body)

    def metrics(self) -> dict[str, dict[tuple, float]]:
        """Every sample by name and labels, as one scrape tells them."""
        families = text_string_to_metric_families(self.http.get("/metrics").text)
        found: dict[str, dict[tuple, float]] = {}
        for sample in (sample for family in families for sample in family.samples):
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return found

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that bear the labels."""
        return sum(
            value for bears, value in self.metrics().get(name, {}).items() if labels.items() <= dict(bears).items()
        )

    def unrest(self) -> dict[str, float]:
        """What requests hold, and how many have not ended; {} in a server that serves nobody."""
        metrics = self.metrics()
        held = {name: sum(metrics[name].values()) for name in AT_REST}
        held["silent parties"] = sum(1 - up for up in metrics["mstar_up"].values())
        held["http"] = sum(metrics["mstar_http_requests_in_flight"].values()) - 1  # the scrape itself
        ended = sum(metrics.get("mstar_requests_ended_total", {}).values())
        held["not ended"] = sum(metrics["mstar_requests_submitted_total"].values()) - ended
        return {name: value for name, value in held.items() if value}

    def parties(self) -> dict[str, int]:
        """The process of each party, by its title: "conductor", "worker reading", ..."""
        return {title: pid for pid, title in children(os.getpid()) if pid not in self.others}

    def kill(self, *titles: str) -> None:
        parties = self.parties()
        for title in titles:
            os.kill(parties[title], signal.SIGKILL)

    def ready(self) -> bool:
        return self.http.get("/health").status_code == 200

    def kill_and_wait(self, *titles: str) -> None:
        """End parties, and wait until the server has noticed and has others."""
        self.kill(*titles)
        assert wait_for(lambda: not self.ready())
        assert wait_for(self.ready)

    def footprints(self) -> dict[str, Footprint]:
        """Of every process of the server."""
        return {title: footprint(pid) for title, pid in {"main": os.getpid(), **self.parties()}.items()}

    def growth(self, before: dict[str, Footprint]) -> dict[str, tuple]:
        """The processes that are missing, that should not be there, or that hold more than before."""
        now = self.footprints()
        kept = {title for title in before.keys() & now.keys() if before[title].covers(now[title])}
        return {title: (before.get(title), now.get(title)) for title in (before.keys() | now.keys()) - kept}


def wait_for(condition, seconds: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def footprint(pid: int) -> Footprint:
    kinds: Counter = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:  # the descriptor by which the directory is read
            continue
        kinds["arena" if target.startswith("/memfd:mstar-") else target.partition(":")[0]] += 1
    maps = Path(f"/proc/{pid}/maps").read_text()
    return Footprint(kinds, thread_count(pid), len(set(re.findall(r"/memfd:mstar-\w+", maps))))


def thread_count(pid: int) -> int:
    """How many threads a process has; of this process's those of pools are left out, which come and go."""
    if pid != os.getpid():
        return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    return sum(not thread.name.startswith(("asyncio_", "AnyIO")) for thread in threading.enumerate())


def child_processes() -> frozenset[int]:
    """Of this process."""
    return frozenset(pid for pid, _ in children(os.getpid()))


@contextmanager
def installed(directory: Path) -> Iterator[Registry]:
    """The scripted model as a plugin installed there, which processes find that start meanwhile."""
    distributions.install(directory, PLUGIN, SCRIPTED)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        patch.setenv(env.PLUGINS.name, PLUGIN)
        yield load_registry([str(directory)])


@contextmanager
def served(directory: Path, fields: dict | None = None) -> Iterator[Server]:
    placement = Placement.model_validate(THREE_WORKERS | (fields or {}))
    others = child_processes()
    with (
        installed(directory) as registry,
        Service.start(["scripted"], registry=registry, placement=placement, processes=True) as service,
        http_server(service, ServerSettings(port=0, drain_s=5, stall_s=STALL_S)) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_S) as http,
    ):
        yield Server(service, url, http, others)


@pytest.fixture(scope="session")
def serve(tmp_path_factory):
    """Starts a server for a placement; nothing of it may be left when it has ended."""

    @contextmanager
    def start(fields: dict | None = None) -> Iterator[Server]:
        before, held = (child_processes(), sorted(os.listdir("/dev/shm"))), footprint(os.getpid())
        with served(tmp_path_factory.mktemp("site-packages"), fields) as server:
            yield server
        assert wait_for(lambda: (child_processes(), sorted(os.listdir("/dev/shm"))) == before)
        assert wait_for(lambda: held.covers(footprint(os.getpid()))), (held, footprint(os.getpid()))

    return start


@pytest.fixture(scope="session")
def eventually():
    """Waits until a condition holds; says whether it came to hold."""
    return wait_for


@pytest.fixture
def pcm():
    """The body of a pcm response to a request of so many items."""

    def make(items: int, *, code: int = 1, seed: int = 0) -> bytes:
        values = [scripted.sample_of(code, seed, step) for step in range(items)]
        return to_pcm(np.repeat(np.array(values, dtype=np.float32), scripted.ITEM_SAMPLES)).tobytes()

    return make
