"""What the runtime's own Python costs: routing of a node's completion per request, and admission of a request.

    python benchmarks/routing.py [--batch 32] [--rounds 7] [--json FILE]

Routing: a worker's loop on an engine that computes nothing. Timed is all that the loop does for a batch but the
engine: choosing the queue, building the calls, storing outputs, advancing the programs. Admission: the Conductor's
handling of one `Submit`, from its mailbox to the messages that open the request and start its first walks. The
budgets are 8 and 150 microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import zmq
from rich.console import Console
from rich.table import Table

from mstar_core.conductor.conductor import Conductor
from mstar_core.conductor.models import served_models
from mstar_core.engines.base import Batch, BatchLimits, Outputs
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.spec.layout import layout_of
from mstar_core.spec.model import ModelSpec
from mstar_core.spec.placement import Placement
from mstar_core.testing import counting
from mstar_core.testing.counting_engine import CountingEngine
from mstar_core.testing.plugins import registry_with
from mstar_core.wire.exchange import Exchange
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Close, Open, StartWalk, Submit, TensorRef, WorkerReady
from mstar_core.worker.models import LoadedModel
from mstar_core.worker.program import compile_model
from mstar_core.worker.worker import Worker

STEPS = 400
BUDGET_ROUTING_US = 8.0
BUDGET_ADMISSION_US = 150.0


class Nothing(CountingEngine):
    """Computes nothing, so that what is timed is routing."""

    run_ahead = frozenset()

    def run(self, batch: Batch) -> None:
        """No work."""

    def finish(self, batch: Batch) -> list[Outputs]:
        """The same outputs for every call."""
        return [{"value": 0, "stop": False}] * len(batch.calls)


def model_spec() -> ModelSpec:
    """The counting model, whose walk `dynamic` is a loop over one node, as a decode loop is."""
    registry = registry_with(counting)
    return assemble(registry, "counting", locate(registry.card("counting")))


def routing(spec: ModelSpec, batch: int) -> float:
    """Microseconds of the loop per node completion and request."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    engine = Nothing()
    layout = layout_of(spec, Placement())
    model = LoadedModel(compile_model(spec), layout, {"count": engine}, {"count": BatchLimits(requests=batch)})
    conductor = Mailbox(context, "inproc://conductor")
    frontend = Mailbox(context, "inproc://frontend")
    mailbox = Mailbox(context, "inproc://worker")
    exchange = Exchange(mailbox.address)
    worker = Worker("main", mailbox, conductor.address, {"counting": model}, exchange, not_asked, run_ahead=False)
    params = {"walk": "dynamic", "rounds": 10**6, "stop_at": 10**9, "fail_at": 10**9}
    for key in range(1, batch + 1):
        opened = Open(key, str(key), "counting", params, key, {}, [], frontend.address, key, [mailbox.address])
        worker._handle(opened)
        worker._handle(StartWalk(key, "dynamic", {}))
    spent = 0.0
    for _ in range(STEPS):
        started = time.perf_counter()
        flight = worker._scheduler.next()
        spent += time.perf_counter() - started
        assert flight is not None
        assert len(flight.batch.calls) == batch
        engine.run(flight.batch)
        started = time.perf_counter()
        worker._settle(flight)
        spent += time.perf_counter() - started
    for key in range(1, batch + 1):
        worker._handle(Close(key))
    worker._device.close()
    worker._waker.close()
    for mailbox in (worker._mailbox, conductor, frontend):
        mailbox.close()
    context.term()
    return spent / STEPS / batch * 1e6


def admission(spec: ModelSpec) -> float:
    """Microseconds of the Conductor per submitted request."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    frontend, worker = Mailbox(context, "inproc://frontend"), Mailbox(context, "inproc://worker")
    served = served_models([spec], Placement.model_validate({"models": {"counting": {"running": STEPS}}}))
    conductor = Conductor(Mailbox(context, "inproc://conductor"), served, (frontend.address,))
    conductor._handle(WorkerReady("main", worker.address, {"counting": ["count"]}, {"counting": {}}, "cpu", 0, 0))
    params = {"walk": "dynamic", "rounds": 10, "stop_at": 10**6, "fail_at": 10**6}
    submits = [
        Submit(
            str(n),
            "counting",
            params,
            n,
            {"value": [TensorRef("int64", (), bytes(8))]},
            ["tensor"],
            frontend.address,
            n,
        )
        for n in range(STEPS)
    ]
    started = time.perf_counter()
    for submit in submits:
        conductor._handle(submit)
    spent = time.perf_counter() - started
    for mailbox in (conductor._mailbox, frontend, worker):
        mailbox.close()
    context.term()
    return spent / STEPS * 1e6


def not_asked() -> WorkerReady:
    """What the worker would report; here nobody starts its loop."""
    raise AssertionError("the worker's loop does not run")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "routing.json")
    options = parser.parse_args(arguments)
    spec = model_spec()
    rounds = [(routing(spec, options.batch), admission(spec)) for _ in range(options.rounds)]
    measured = [
        ("routing, per node completion and request", [each[0] for each in rounds], BUDGET_ROUTING_US),
        ("admission, per request", [each[1] for each in rounds], BUDGET_ADMISSION_US),
    ]
    table = Table("cost", "median us", "lowest us", "highest us", "budget us", title=f"batch {options.batch}")
    for name, values, budget in measured:
        cells = (statistics.median(values), min(values), max(values), budget)
        table.add_row(name, *(f"{cell:.1f}" for cell in cells))
    Console().print(table)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({name: values for name, values, _ in measured}, indent=2) + "\n")


if __name__ == "__main__":
    main()
