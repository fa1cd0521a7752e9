"""Whether a server grows with the work that it has done: memory, descriptors and threads of each of its processes.

    python benchmarks/soak.py [--minutes 10] [--clients 8] [--json FILE]

`mstar serve` of the scripted model over three workers, under a steady mix: whole and streamed answers, inputs and
outputs that go through shared memory, deadlines, clients that leave, bodies that are refused, nodes that fail. Every
answer is compared with what its request asked for. A process's slope is that of its resident memory, by least squares
over the second half of the samples, when every pool and cache has its size. Flat is a slope below 100 KiB a minute.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

from mstar_core.media.pcm import to_pcm
from mstar_core.testing.scripted import ITEM_SAMPLES, sample_of
from mstar_core.testing.serving import Serving, serving

FLAT_KIB_PER_MINUTE = 100.0
INTERVAL_S = 5.0
PATIENCE_S = 60.0

LONG_TEXT = "All work and no play. " * 100
"""As a tensor, eight bytes a character, it goes through shared memory."""

MANY_ROUNDS = 2100
"""So do the counts of so many rounds."""

PLACEMENT = """
workers:
  reading: {device: cpu, threads: 1}
  writing: {device: cpu, threads: 1}
  speaking: {device: cpu, threads: 1}
groups:
  - {nodes: [reader, counter], worker: reading}
  - {nodes: [writer], worker: writing}
  - {nodes: [speaker], worker: speaking}
"""


@dataclass(slots=True)
class Asked:
    """One request: its parameters, and who asks."""

    http: httpx.Client
    rng: random.Random
    params: dict[str, Any] = field(init=False)
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.params = {"code": self.rng.randrange(1000), "seed": self.rng.randrange(2**63)}
        self.params |= {"items": self.rng.randrange(20), "delay_ms": self.rng.choice((0, 0, 1, 2))}
        self.text = self.rng.choice(("Hello.", LONG_TEXT))

    def pcm(self) -> bytes:
        """What is to be heard."""
        code, seed = self.params["code"], self.params["seed"]
        values = [sample_of(code, seed, step) for step in range(self.params["items"])]
        return to_pcm(np.repeat(np.array(values, dtype=np.float32), ITEM_SAMPLES)).tobytes()

    def speech(self, **fields: Any) -> dict[str, Any]:
        """The arguments of a request for speech."""
        body = {"model": "scripted", "input": self.text, "response_format": "pcm", **self.params, **fields}
        return {"method": "POST", "url": "/v1/audio/speech", "json": body}

    def generation(self, **fields: Any) -> dict[str, Any]:
        """The arguments of a request by the native route."""
        timeout = self.rng.choice((PATIENCE_S, 60 * PATIENCE_S))
        body = {"model": "scripted", "input": self.text, "parameters": self.params, "timeout": timeout, **fields}
        return {"method": "POST", "url": "/generate", "json": body}


def whole(asked: Asked) -> str:
    """Speech in one piece."""
    return _heard(asked, asked.http.request(**asked.speech()).content)


def streamed(asked: Asked) -> str:
    """Speech in a chunked body."""
    return _heard(asked, asked.http.request(**asked.speech(stream=True)).content)


def generated(asked: Asked) -> str:
    """The native route, in one piece."""
    return _heard(asked, _sound(asked.http.request(**asked.generation()).json()["outputs"]))


def counted(asked: Asked) -> str:
    """The native route, with a loop on another worker, whose outcome is large."""
    asked.params["rounds"] = MANY_ROUNDS
    outputs = asked.http.request(**asked.generation()).json()["outputs"]
    counts = [base64.b64decode(part["data"]) for part in outputs if part["type"] == "tensor"]
    right = counts == [np.arange(1, MANY_ROUNDS + 1, dtype="<i8").tobytes()]
    return _heard(asked, _sound(outputs)) if right else "wrong"


def events(asked: Asked) -> str:
    """The native route, in events."""
    blocks = asked.http.request(**asked.generation(stream=True)).text.split("\n\n")
    parts = [json.loads(block.partition("data: ")[2]) for block in blocks if block.startswith("event: output")]
    return _heard(asked, _sound(parts))


def left(asked: Asked) -> str:
    """A client that leaves after the first piece."""
    asked.params |= {"items": 100_000, "max_items": 100_000, "delay_ms": 2}
    with asked.http.stream(**asked.speech(stream=True)) as answer:
        next(answer.iter_raw())
    return "left"


def gave_up(asked: Asked) -> str:
    """A client that leaves before the first piece."""
    asked.params |= {"items": 100_000, "max_items": 100_000, "delay_ms": 2}
    with suppress(httpx.ReadTimeout):
        asked.http.request(**asked.generation(), timeout=httpx.Timeout(PATIENCE_S, read=0.1))
        return "wrong"
    return "left"


def refused(asked: Asked) -> str:
    """A body with a field that nobody knows."""
    return "refused" if asked.http.request(**asked.speech(pitch=3)).status_code == 400 else "wrong"


def failed(asked: Asked) -> str:
    """A request that a node fails for."""
    asked.params |= {"items": 5, "fail": asked.rng.choice(("reader", "writer", "speaker"))}
    answer = asked.http.request(**asked.generation())
    return "failed" if answer.status_code == 500 and "was told to fail" in answer.text else "wrong"


MIX: dict[Callable[[Asked], str], int] = {
    whole: 20,
    streamed: 20,
    generated: 20,
    events: 20,
    counted: 1,
    left: 6,
    gave_up: 4,
    refused: 5,
    failed: 4,
}
"""Who asks, and how often."""


def _sound(parts: Sequence[dict[str, Any]]) -> bytes:
    audio = (np.frombuffer(base64.b64decode(part["data"]), "<f4") for part in parts if part["type"] == "audio")
    return b"".join(to_pcm(samples).tobytes() for samples in audio)


def _heard(asked: Asked, sound: bytes) -> str:
    return "right" if sound == asked.pcm() else "wrong"


def client(url: str, number: int, over: threading.Event) -> Counter[str]:
    """Ask for one thing after another; how often what came of it."""
    rng, became = random.Random(number), Counter[str]()
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as http:
        while not over.is_set():
            (kind,) = rng.choices(list(MIX), list(MIX.values()))
            try:
                became[kind(Asked(http, rng))] += 1
            except (httpx.HTTPError, KeyError) as error:
                became[f"{kind.__name__}: {type(error).__name__}"] += 1
    return became


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process held at a time: resident memory in KiB, descriptors, threads."""

    seconds: float
    kib: int
    descriptors: int
    threads: int


def sample(pid: int, seconds: float) -> Sample:
    """Look at a process now (proc(5))."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Sample(seconds, int(status["VmRSS"].split()[0]), descriptors, int(status["Threads"]))


def samples_of(server: Serving, minutes: float) -> dict[str, list[Sample]]:
    """Every process's samples, while the clients work. The server's metrics are read as often."""
    processes = {"frontend": server.process.pid, **server.parties()}
    samples: dict[str, list[Sample]] = {title: [] for title in processes}
    for seconds in _ticks(minutes * 60):
        httpx.get(f"{server.url}/metrics").raise_for_status()
        for title, pid in processes.items():
            samples[title].append(sample(pid, seconds))
    return samples


def _ticks(seconds: float) -> Iterator[float]:
    started = time.monotonic()
    for number in range(int(seconds / INTERVAL_S) + 1):
        time.sleep(max(started + number * INTERVAL_S - time.monotonic(), 0.0))
        yield time.monotonic() - started


def slope(samples: Sequence[Sample]) -> float:
    """KiB a minute, over the second half."""
    half = samples[len(samples) // 2 :]
    return statistics.linear_regression([each.seconds / 60 for each in half], [each.kib for each in half]).slope


def soak(server: Serving, clients: int, minutes: float) -> tuple[dict[str, list[Sample]], Counter[str]]:
    """Samples of all processes, and what became of the requests."""
    over = threading.Event()
    with ThreadPoolExecutor(clients) as pool:
        working = [pool.submit(client, server.url, number, over) for number in range(clients)]
        try:
            samples = samples_of(server, minutes)
        finally:
            over.set()
        return samples, sum((each.result() for each in working), Counter[str]())


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "soak.json")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as directory,
        serving(Path(directory), "--log-level", "error", placement=PLACEMENT) as server,
    ):
        samples, became = soak(server, options.clients, options.minutes)
    table = Table("process", "start KiB", "end KiB", "KiB a minute", "descriptors", "threads")
    table.title = (
        f"{options.clients} clients, {options.minutes:g} minutes, flat: below {FLAT_KIB_PER_MINUTE:g} KiB a minute"
    )
    for title, seen in samples.items():
        first, last = seen[0], seen[-1]
        counts = [f"{a} to {b}" for a, b in ((first.descriptors, last.descriptors), (first.threads, last.threads))]
        table.add_row(title, str(first.kib), str(last.kib), f"{slope(seen):+.0f}", *counts)
    Console().print(table)
    print(f"{sum(became.values())} requests: " + ", ".join(f"{count} {what}" for what, count in became.most_common()))
    result = {
        "minutes": options.minutes,
        "clients": options.clients,
        "requests": became,
        "processes": {
            title: {
                "kib_per_minute": slope(seen),
                "samples": [[round(each.seconds, 1), each.kib, each.descriptors, each.threads] for each in seen],
            }
            for title, seen in samples.items()
        },
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
