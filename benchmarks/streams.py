"""What a streaming edge costs per chunk: beside a direct call, within a worker and between workers, in one run.

    python benchmarks/streams.py [--chunks 2000] [--requests 8] [--rounds 5] [--json FILE]

Two nodes that compute nothing. *Direct*: one loop runs the first and then the second. *Edge*: the first runs in a loop
of its own and streams its items (float32 [256], one per chunk) to the second, on the same worker, on another worker's
thread, and in another process. A figure is the wall time of a whole request per chunk, everything included; the
difference to the direct call is the edge's own cost. The budget is 100 microseconds within a worker.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from mstar_core import env, hookimpl
from mstar_core.client.service import Service
from mstar_core.engines.base import Call, NodeContext
from mstar_core.engines.stateless import StatelessNode
from mstar_core.spec.chunks import FixedChunkPolicy
from mstar_core.spec.content import Content, Prepared, Text
from mstar_core.spec.graph import (
    DynamicLoop,
    Emit,
    Loop,
    Node,
    Param,
    Port,
    Run,
    Sequential,
    StreamEnd,
    StreamingEdge,
    Walk,
    WalkSet,
)
from mstar_core.spec.machine import RequestView, Start, Transition, WalkEnded
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig
from mstar_core.spec.params import Parameter
from mstar_core.spec.placement import Placement
from mstar_core.testing import distributions

BUDGET_US = 100.0
ITEM = torch.zeros(256)

ONE_WORKER = Placement()
TWO_WORKERS = Placement.model_validate(
    {
        "workers": {"first": {"threads": 1}, "second": {"threads": 1}},
        "groups": [{"nodes": ["take"], "worker": "second"}],
    }
)


class Idle(StatelessNode):
    """Gives the same item for every call."""

    def __init__(self, context: NodeContext) -> None:
        self.outputs = {port.name: ITEM for port in context.node.outputs}

    def forward(self, calls: Sequence[Call]) -> Sequence[Mapping[str, Any]]:
        """No work."""
        return [self.outputs] * len(calls)


class Machine:
    """One loop with both nodes, or two loops that meet at the edge."""

    def start(self, request: RequestView) -> Transition:
        """What the request asks for."""
        if request.params["way"] == "direct":
            return Transition(state=1, start=(Start("direct"),))
        return Transition(state=2, start=(Start("produce"), Start("consume")))

    def advance(self, state: int, event: WalkEnded) -> Transition:
        """The end, when the last loop has ended."""
        if event.walk == "produce":
            return Transition(state=state, finish=("producing",))
        return Transition(state=state, end="stop")

    def demand(self, request: RequestView) -> Mapping[str, int]:
        """No KV."""
        return {}


class Renderer:
    """Nothing is kept."""

    def output(self, modality: str, value: Any) -> Content | None:
        """Dropped."""
        return None

    def finish(self) -> Sequence[Content]:
        """Nothing."""
        return ()

    def usage(self, tokens: Mapping[str, int]) -> Mapping[str, int]:
        """Nothing is counted."""
        return {}


class Processor:
    """Requests bring nothing but parameters."""

    def prepare(self, content: Sequence[Content], params: Mapping[str, Any]) -> Prepared:
        """No tensors."""
        return Prepared(inputs={}, params=params)

    def render(self, prepared: Prepared) -> Renderer:
        """A renderer."""
        return Renderer()


@hookimpl
def mstar_models() -> list[ModelCard]:
    """The model `edges`."""
    tiny = Checkpoint(name="tiny", source="mstar_core:testing")
    return [
        ModelCard(
            name="edges",
            family="edges",
            summary="idle nodes",
            inputs=("text",),
            outputs=("tensor",),
            checkpoints=(tiny,),
        )
    ]


@hookimpl
def mstar_config(card: ModelCard, checkpoint: Path) -> ModelConfig:
    """How many chunks, and which way."""
    parameters = (
        Parameter(name="chunks", kind="int", default=1, minimum=1),
        Parameter(name="way", kind="str", default="direct", choices=("direct", "edge")),
    )
    return ModelConfig(values=None, parameters=parameters)


@hookimpl
def mstar_nodes(card: ModelCard, config: ModelConfig) -> tuple[Node, ...]:
    """The same two nodes, called directly and joined by an edge."""
    item = Port("item", "float32", (256,))
    last = Port("last", "float32", (256,))
    pairs = (("make_here", "take_here"), ("make", "take"))
    return tuple(
        node
        for make, take in pairs
        for node in (
            Node(name=make, engine="stateless", inputs=(), outputs=(item,), factory=f"{__name__}:Idle"),
            Node(name=take, engine="stateless", inputs=(item,), outputs=(last,), factory=f"{__name__}:Idle"),
        )
    )


@hookimpl
def mstar_walks(card: ModelCard, config: ModelConfig) -> WalkSet:
    """Three loops."""
    both = Sequential(Run("make_here"), Run("take_here"))
    times, end = Param("chunks"), StreamEnd("take", "item")
    return WalkSet(
        walks=(
            Walk(name="direct", partition="calling", body=Sequential(Loop(both, times=times), Emit("last", "tensor"))),
            Walk(name="produce", partition="producing", body=Loop(Run("make"), times=times)),
            Walk(
                name="consume",
                partition="consuming",
                body=Sequential(DynamicLoop(Run("take"), at_most=None, until=end), Emit("last", "tensor")),
            ),
        ),
        edges=(StreamingEdge(source="make.item", target="take.item", policy=FixedChunkPolicy(1), capacity=64),),
    )


@hookimpl
def mstar_state_machine(card: ModelCard, config: ModelConfig) -> Machine:
    """The machine."""
    return Machine()


@hookimpl
def mstar_processor(card: ModelCard, config: ModelConfig, checkpoint: Path) -> Processor:
    """The processor."""
    return Processor()


def per_chunk(service: Service, way: str, chunks: int, requests: int) -> float:
    """Microseconds per chunk of requests that run at the same time."""
    started = time.perf_counter()
    tickets = [service.submit("edges", [Text("x")], {"chunks": chunks, "way": way}) for _ in range(requests)]
    for ticket in tickets:
        for _ in ticket:
            pass
    return (time.perf_counter() - started) / chunks / requests * 1e6


def install(directory: Path) -> None:
    """Make this file a plugin that children find, and the only one."""
    distributions.install(directory, "mstar-edges", Path(__file__).read_text(encoding="utf-8"))
    sys.path.insert(0, str(directory))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ[env.PLUGINS.name] = "mstar-edges"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in alternating rounds, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "streams.json")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        install(directory)
        from mstar_core.plugins.registry import load_registry

        registry = load_registry([str(directory)])

        def start(placement: Placement, *, processes: bool = False) -> Service:
            service = Service.start(["edges"], placement=placement, registry=registry, processes=processes)
            return stack.enter_context(service)

        one, two, apart = start(ONE_WORKER), start(TWO_WORKERS), start(TWO_WORKERS, processes=True)
        ways = {
            "direct call": (one, "direct"),
            "edge, same worker": (one, "edge"),
            "edge, another thread's worker": (two, "edge"),
            "edge, another process's worker": (apart, "edge"),
        }
        figures: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, (service, way) in ways.items():
                figures[name].append(per_chunk(service, way, options.chunks, options.requests))
    direct = figures["direct call"]
    table = Table(
        "way", "us per chunk", "over direct, us", title=f"{options.requests} requests, budget {BUDGET_US:g} us"
    )
    for name, values in figures.items():
        over = statistics.median(value - base for value, base in zip(values, direct, strict=True))
        table.add_row(name, f"{statistics.median(values):.1f}", f"{over:+.1f}")
    Console().print(table)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
