"""Text in, speech out: Qwen3-Omni beside transformers' own `generate`, on one machine, in alternating rounds.

    python benchmarks/omni_speech.py [--sizes tiny,mid] [--batches 1,4,16] [--rounds 3] [--frames 40] [--json FILE]

*tiny* has the sizes of the plugin's recorded checkpoint. *mid* has a thinker of hidden 512, 6 layers and 16 experts, 4
for a token; a talker of hidden 384 and 4 layers; a code predictor of 3 layers for 8 groups. Both have random float32
weights, in which neither reply nor speech ever ends, so that every request writes the same number of tokens and
frames; all is greedy, on one thread. transformers answers one request after the other, M* all at once, from the request
to the last sample at the caller. *Real-time factor* is the time until the last request is answered over the seconds of
one request's speech; *throughput* is the speech of all requests over that time. Samples are compared before the clock
runs.

The second table takes the talker's step apart: milliseconds per frame of the decoder, of the code predictor, and of the
rest (sampling, scheduling, caches), for talkers that have the machine for themselves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from omni_checkpoint import write_checkpoint
from omni_peers import Job, Peer, SystemPeer, TransformersPeer
from omni_talker import Step, TalkerPeer, TransformersTalker, measure_steps, step_table
from rich.console import Console
from rich.table import Table

RATE = 24_000
TARGET = 2.7
"""Times the throughput of transformers at 16 requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One peer with so many requests: medians over rounds."""

    size: str
    peer: str
    batch: int
    seconds: float
    cpu_seconds: float
    real_time_factor: float
    throughput: float


def check(peers: Sequence[Peer], job: Job) -> None:
    """All peers say the same."""
    prompts = job.prompts(2)
    wanted, *others = [peer.speak(prompts, job) for peer in peers]
    for peer, made in zip(peers[1:], others, strict=True):
        for ours, theirs in zip(made, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-3, rtol=0, err_msg=peer.name)


def measure(size: str, peers: Sequence[Peer], batches: Sequence[int], rounds: int, job: Job) -> list[Measured]:
    """Every peer with every number of requests, the peers alternating within each round."""
    results = []
    for batch in batches:
        taken: dict[str, list[tuple[float, float]]] = {peer.name: [] for peer in peers}
        for _ in range(rounds):
            for peer in peers:
                wall, cpu = time.perf_counter(), time.process_time()
                made = peer.speak(job.prompts(batch), job)
                taken[peer.name].append((time.perf_counter() - wall, time.process_time() - cpu))
        speech = len(made[0]) / RATE
        for name, pairs in taken.items():
            seconds, cpu = (statistics.median(pair[axis] for pair in pairs) for axis in (0, 1))
            results.append(
                Measured(
                    size=size,
                    peer=name,
                    batch=batch,
                    seconds=seconds,
                    cpu_seconds=cpu,
                    real_time_factor=seconds / speech,
                    throughput=batch * speech / seconds,
                )
            )
    return results


def run(size: str, batches: Sequence[int], rounds: int, job: Job) -> tuple[list[Measured], list[Step]]:
    """One size: the same checkpoint for all peers."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        write_checkpoint(directory, size)
        reference = TransformersPeer(directory)
        systems = [SystemPeer(directory), SystemPeer(directory, compiled=False)]
        for system in systems:
            stack.callback(system.close)
        peers: list[Peer] = [reference, *systems]
        check(peers, job)
        whole = measure(size, peers, batches, rounds, job)
        talkers: list[TalkerPeer | TransformersTalker] = [
            TransformersTalker(reference),
            TalkerPeer(directory),
            TalkerPeer(directory, compiled=False),
        ]
        return whole, measure_steps(size, talkers, batches, rounds, job)


def whole_table(results: Sequence[Measured]) -> Table:
    """Speech beside transformers."""
    base = {(each.size, each.batch): each for each in results if each.peer == TransformersPeer.name}
    shown = Table(
        "size", "peer", "requests", "s", "CPU s", "real-time factor", "throughput", "x transformers", "x in CPU s",
        title="Text in, speech out",
    )  # fmt: skip
    for each in results:
        ratio = each.throughput / base[each.size, each.batch].throughput
        goal = f" (goal {TARGET})" if each.batch == 16 and each.peer != TransformersPeer.name else ""
        shown.add_row(
            each.size,
            each.peer,
            str(each.batch),
            f"{each.seconds:.2f}",
            f"{each.cpu_seconds:.2f}",
            f"{each.real_time_factor:.3f}",
            f"{each.throughput:.2f}",
            f"{ratio:.2f}{goal}",
            f"{base[each.size, each.batch].cpu_seconds / each.cpu_seconds:.2f}",
        )
    return shown


def main() -> None:
    """Measure and print; write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="tiny,mid")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    job = Job(tokens=arguments.tokens, frames=arguments.frames)
    batches = [int(each) for each in arguments.batches.split(",")]
    whole: list[Measured] = []
    steps: list[Step] = []
    for size in arguments.sizes.split(","):
        measured, taken = run(size, batches, arguments.rounds, job)
        whole += measured
        steps += taken
    Console().print(whole_table(whole))
    Console().print(step_table(steps))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {"speech": [asdict(each) for each in whole], "steps": [asdict(each) for each in steps]}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
