"""Messages and tensors between two processes of a host, beside the least that they could cost.

    python benchmarks/messages.py [--rounds 31] [--json FILE]

Messages: a round trip between two mailboxes over ipc, beside bare ZeroMQ PUSH and PULL sockets with the same frames.
Tensors: from an array of one process to having read it once in the other: publish, send the reference, take, read, and
the answer; beside one copy into memory that both have mapped, a notification by bare ZeroMQ sockets, the same reading
and the answer. Rounds of both alternate; the ratio is the median over the rounds, and that of the lowest is what others
on the machine disturb least. The budget is twice the bare cost.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from mstar_core.wire.exchange import Exchange
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import Address, Emitted, Output, Stop, StreamCredit

SIZES = {"1 KB": 2**10, "16 KB": 2**14, "256 KB": 2**18, "1 MB": 2**20, "16 MB": 2**24}
LARGEST = max(SIZES.values())
ROUND_S = 0.05
"""Seconds of one round, after a tenth of that to warm up."""

BUDGET = 2.0

Trip = Callable[[], None]


def reading(array: NDArray[Any]) -> int:
    """One pass over the memory."""
    return int(array.view(np.uint64).max())


class Mailboxes:
    """This side of M*'s own way, with a child that answers."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path) -> None:
        self._mailbox = Mailbox(context, f"ipc://{directory}/parent")
        self._exchange = Exchange(self._mailbox.address)
        self._peer = Address(self._mailbox.address.host, f"ipc://{directory}/child")
        self._child = _child("mailboxes", str(directory))

    def message(self) -> None:
        """One round trip of a message."""
        self._mailbox.send(self._peer, StreamCredit(1, 2, 16))
        self._answer()

    def tensor(self, array: NDArray[Any]) -> Trip:
        """What moves that array once."""

        def trip() -> None:
            ref = self._exchange.publish(array, self._peer)
            self._mailbox.send(self._peer, Emitted(self._mailbox.address, [Output(1, "tensor", ref)]))
            self._answer()

        return trip

    def close(self) -> None:
        """End the child."""
        self._mailbox.send(self._peer, Stop())
        assert self._child.wait() == 0
        self._mailbox.close()
        self._exchange.close()

    def _answer(self) -> None:
        while not self._mailbox.receive(None):
            pass


def answer_mailboxes(directory: str) -> None:
    """The child's side of `Mailboxes`."""
    with zmq.Context() as context, Mailbox(context, f"ipc://{directory}/child") as mailbox:
        exchange = Exchange(mailbox.address)
        parent = Address(mailbox.address.host, f"ipc://{directory}/parent")
        while True:
            for message in mailbox.receive(None):
                match message:
                    case Emitted(_, [Output(_, _, ref)]):
                        reading(exchange.take(ref))
                    case Stop():
                        return
                mailbox.send(parent, StreamCredit(1, 2, 16))


class Bare:
    """This side of bare sockets and one block of shared memory, with a child that answers."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path) -> None:
        self._inbox, self._outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        self._inbox.bind(f"ipc://{directory}/bare-parent")
        self._outbox.connect(f"ipc://{directory}/bare-child")
        memory = os.memfd_create("bare")
        os.ftruncate(memory, LARGEST)
        self._memory = np.frombuffer(mmap.mmap(memory, LARGEST), np.uint8)
        self._child = _child("bare", str(directory), f"/proc/{os.getpid()}/fd/{memory}")
        self._frame = msgspec.msgpack.encode(StreamCredit(1, 2, 16))

    def message(self) -> None:
        """One round trip of the frame that a message is."""
        self._outbox.send(self._frame)
        self._inbox.recv()

    def tensor(self, array: NDArray[Any]) -> Trip:
        """What moves that array once."""
        room = self._memory[: array.nbytes]
        frame = b"tensor" + array.nbytes.to_bytes(8, "little")

        def trip() -> None:
            np.copyto(room, array)
            self._outbox.send(frame)
            self._inbox.recv()

        return trip

    def close(self) -> None:
        """End the child."""
        self._outbox.send(b"")
        assert self._child.wait() == 0
        self._outbox.close()
        self._inbox.close()


def answer_bare(directory: str, memory: str) -> None:
    """The child's side of `Bare`."""
    with open(memory, "r+b") as file:
        shared = np.frombuffer(mmap.mmap(file.fileno(), LARGEST), np.uint8)
    with zmq.Context() as context, context.socket(zmq.PULL) as inbox, context.socket(zmq.PUSH) as outbox:
        inbox.bind(f"ipc://{directory}/bare-child")
        outbox.connect(f"ipc://{directory}/bare-parent")
        while frame := inbox.recv():
            if frame.startswith(b"tensor"):
                reading(shared[: int.from_bytes(frame[6:], "little")])
            outbox.send(frame)


def _child(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--answer", *arguments])


def microseconds(trip: Trip) -> float:
    """The mean time of a trip in one round."""
    for seconds in (ROUND_S / 10, ROUND_S):
        trips, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < seconds:
            trip()
            trips += 1
    return spent / trips * 1e6


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds of each round, by what moved and by whom."""
    measured: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as directory, zmq.Context() as context:
        ours, bare = Mailboxes(context, Path(directory)), Bare(context, Path(directory))
        trips = {"message": (ours.message, bare.message)}
        for name, size in SIZES.items():
            array = np.random.default_rng(size).integers(0, 256, size, np.uint8)
            trips[name] = (ours.tensor(array), bare.tensor(array))
        for name, (our_trip, bare_trip) in trips.items():
            measured[name] = {"mstar": [], "bare": []}
            for _ in range(rounds):
                measured[name]["mstar"].append(microseconds(our_trip))
                measured[name]["bare"].append(microseconds(bare_trip))
        ours.close()
        bare.close()
    return measured


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "messages.json")
    parser.add_argument("--answer", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.answer:
        kind, *rest = options.answer
        answer = answer_mailboxes if kind == "mailboxes" else answer_bare
        answer(*rest)
        return
    measured = measure(options.rounds)
    columns = ("M*, median us", "bare, median us", "ratio", "M*, lowest us", "bare, lowest us", "ratio of lowest")
    table = Table("what", *columns, title=f"budget {BUDGET:.1f}")
    for name, times in measured.items():
        ratio = statistics.median(ours / bare for ours, bare in zip(times["mstar"], times["bare"], strict=True))
        medians, lowest = ([pick(times[side]) for side in ("mstar", "bare")] for pick in (statistics.median, min))
        cells = (*medians, ratio, *lowest, lowest[0] / lowest[1])
        table.add_row(name, *(f"{cell:.1f}" if cell > 10 else f"{cell:.2f}" for cell in cells))
    Console().print(table)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(measured, indent=2) + "\n")


if __name__ == "__main__":
    main()
