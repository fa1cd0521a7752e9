"""The workers as the Conductor knows them: who is up, who is silent, and who gets the next request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mstar_core.spec.layout import Layout
from mstar_core.wire.messages import Address, WorkerReady, WorkerState

SILENCE_S = 10.0
"""After how long without a beat a worker counts as dead. A loop thread may be kept from the processor on a busy machine
for seconds; a process that is really gone is noticed at once by whoever watches over it."""

SILENT = "silent"
"""How the state of a worker begins that lives and does not answer: whoever watches over it should end it."""


@dataclass(slots=True, eq=False)
class KnownWorker:
    """One worker: `state` is `ready` or why not; `load` is the requests that it holds."""

    name: str
    state: str = "loading"
    address: Address | None = None
    report: WorkerReady | None = None
    heard: float = 0.0
    load: int = 0

    @property
    def up(self) -> bool:
        """Whether requests may be sent to it."""
        return self.state == "ready"


@dataclass(slots=True, eq=False)
class Workers:
    """All workers that a placement names, by name."""

    by_name: dict[str, KnownWorker] = field(default_factory=dict)

    @classmethod
    def of(cls, names: Iterable[str]) -> Workers:
        """Workers that were not heard of yet."""
        return cls({name: KnownWorker(name) for name in names})

    def ready(self, report: WorkerReady) -> None:
        """A worker has loaded; it holds no request."""
        worker = self.by_name.setdefault(report.worker, KnownWorker(report.worker))
        worker.state, worker.address, worker.report, worker.load = "ready", report.address, report, 0
        worker.heard = time.monotonic()

    def up(self) -> Iterator[tuple[KnownWorker, Address]]:
        """The workers to which something may be sent."""
        for worker in self.by_name.values():
            if worker.up and worker.address is not None:
                yield worker, worker.address

    def address(self, name: str) -> Address | None:
        """Where a worker is; None when it is not up."""
        worker = self.by_name[name]
        return worker.address if worker.up else None

    def silent(self) -> list[str]:
        """Workers that are up and have not been heard of for too long."""
        now = time.monotonic()
        return [worker.name for worker, _ in self.up() if now - worker.heard > SILENCE_S]

    def missing(self, layout: Layout) -> str:
        """Why a model of this layout cannot be asked now; "" when it can: every group has a worker that is up."""
        for group in {layout.groups[index] for index in (*layout.group_of.values(), *layout.home_of.values())}:
            states = {name: self.by_name[name].state for name in group.workers}
            if not any(state == "ready" for state in states.values()):
                if all(state == "loading" for state in states.values()):
                    return "loading"
                return "; ".join(f"worker {name!r}: {state}" for name, state in states.items())
        return ""

    def route(self, layout: Layout) -> tuple[str, ...]:
        """One worker for each group: of those that are up the one with the fewest requests.

        Groups with the same candidates get the same one, so that tensors between them stay where they are.
        """
        chosen: dict[tuple[str, ...], str] = {}
        for group in layout.groups:
            if group.workers not in chosen:
                candidates = [name for name in group.workers if self.by_name[name].up] or group.workers
                chosen[group.workers] = min(candidates, key=lambda name: self.by_name[name].load)
        return tuple(chosen[group.workers] for group in layout.groups)

    def capacity(self, model: str) -> dict[str, int]:
        """KV tokens by node: what every worker that may run the node has."""
        capacity: dict[str, int] = {}
        for worker, _ in self.up():
            assert worker.report is not None
            for node, tokens in worker.report.capacity.get(model, {}).items():
                capacity[node] = min(tokens, capacity.get(node, tokens))
        return capacity

    def states(self) -> Mapping[str, WorkerState]:
        """What frontends are told."""
        return {name: _state(worker) for name, worker in self.by_name.items()}


def _state(worker: KnownWorker) -> WorkerState:
    report = worker.report
    if report is None:
        return WorkerState(worker.state)
    return WorkerState(worker.state, report.nodes, report.device, report.device_bytes, report.host_bytes)
