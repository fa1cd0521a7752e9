"""What a worker of its own for Orpheus' codec, or for its prefill, costs and brings: in one run, alternating.

    python benchmarks/placements.py [--size codec tiny] [--batches 1 4 16] [--rounds 5] [--ids 84] [--json FILE]

Every placement is a server of processes; a worker has one CPU thread, so that two workers have a core each, and one
worker is measured with two threads as well. Sizes: `tiny` is the bundled checkpoint; `codec` is the real codec (SNAC,
24 kHz) behind a small language model (8 layers, hidden 512, bfloat16) of about the same cost, with random weights.
A round submits a batch of requests at once, with the same seeds for every placement, so that all make the same sound.
Time to first audio (the median of a batch) and seconds of audio made per second are of the best round and, in brackets,
the median over the rounds: what others do on the machine only ever makes a round longer. CPU seconds per second of
audio, of all processes and of the busiest one, are medians and hardly depend on others.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from mstar_core import env
from mstar_core.client.service import Service
from mstar_core.client.ticket import Ticket
from mstar_core.plugins.registry import load_registry
from mstar_core.spec.content import Audio, Text
from mstar_core.spec.placement import Placement

TINY_SCRIPT = Path(__file__).parents[1] / "plugins" / "mstar-orpheus" / "scripts" / "make_tiny.py"
CODEBOOK = 4096
POSITIONS = 2048
SAID = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all."
"""A prompt of 90 ids."""

ONE = {"device": "cpu", "threads": 1}
KV = {"kv": {"tokens": 16384, "page": 16}}

PLACEMENTS: dict[str, dict[str, Any]] = {
    "one worker": {"workers": {"main": ONE}, "groups": [{"nodes": ["lm"], **KV}]},
    "one worker, two threads": {
        "workers": {"main": {"device": "cpu", "threads": 2}},
        "groups": [{"nodes": ["lm"], **KV}],
    },
    "codec apart": {
        "workers": {"speech": ONE, "codec": ONE},
        "groups": [{"nodes": ["lm"], "worker": "speech", **KV}, {"nodes": ["snac"], "worker": "codec"}],
    },
    "prefill apart": {
        "workers": {"reading": ONE, "speech": ONE},
        "groups": [
            {"nodes": ["lm"], "walks": ["prefill"], "worker": "reading", **KV},
            {"nodes": ["lm"], "walks": ["decode"], "worker": "speech", **KV},
            {"nodes": ["snac"], "worker": "speech"},
        ],
    },
}


@dataclass(frozen=True, slots=True)
class Round:
    """What one batch took: milliseconds to each request's first audio, seconds in all, CPU seconds of each process, and
    seconds of audio."""

    first: list[float]
    wall: float
    cpu: list[float]
    audio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One placement at one batch size; CPU seconds are per second of audio."""

    size: str
    placement: str
    batch: int
    first_audio_ms: float
    median_first_audio_ms: float
    audio_per_second: float
    median_audio_per_second: float
    cpu_all: float
    cpu_busiest: float

    @classmethod
    def of(cls, size: str, placement: str, batch: int, rounds: Sequence[Round]) -> Figures:
        """The figures of these rounds."""
        firsts = [statistics.median(each.first) for each in rounds]
        rates = [each.audio / each.wall for each in rounds]
        return cls(
            size=size,
            placement=placement,
            batch=batch,
            first_audio_ms=min(firsts),
            median_first_audio_ms=statistics.median(firsts),
            audio_per_second=max(rates),
            median_audio_per_second=statistics.median(rates),
            cpu_all=statistics.median(sum(each.cpu) / each.audio for each in rounds),
            cpu_busiest=statistics.median(max(each.cpu) / each.audio for each in rounds),
        )


class Server:
    """One placement's processes."""

    def __init__(self, service: Service, processes: Sequence[int]) -> None:
        self._service = service
        self._processes = processes

    def speak(self, batch: int, ids: int) -> Round:
        """One batch."""
        before, started = self._cpu(), time.perf_counter()
        with ThreadPoolExecutor(batch) as readers:
            params = [{"seed": seed, "max_tokens": ids} for seed in range(batch)]
            tickets = [self._service.submit("orpheus", [Text(SAID)], each) for each in params]
            heard = list(readers.map(listen, tickets))
        wall = time.perf_counter() - started
        cpu = [after - each for after, each in zip(self._cpu(), before, strict=True)]
        first = [(moment - started) * 1e3 for moment, _ in heard]
        return Round(first, wall, cpu, sum(audio for _, audio in heard))

    def _cpu(self) -> list[float]:
        return [time.process_time(), *map(cpu_seconds, self._processes)]


def listen(ticket: Ticket) -> tuple[float, float]:
    """When the first audio came, and how many seconds of it there are."""
    first, audio = 0.0, 0.0
    for content in ticket:
        assert isinstance(content, Audio)
        first = first or time.perf_counter()
        audio += content.samples.size / content.rate
    return first, audio


def children() -> set[int]:
    """The processes that this one has started."""
    found = set()
    for each in Path("/proc").glob("[0-9]*"):
        if (fields := _stat(int(each.name))) and int(fields[1]) == os.getpid():
            found.add(int(each.name))
    return found


def cpu_seconds(process: int) -> float:
    """What a process has used, of all its threads (fields 14 and 15 of proc(5))."""
    fields = _stat(process)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(process: int) -> list[str]:
    """The fields of `/proc/PID/stat` behind the name; none of a process that has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def checkpoint(size: str, directory: Path) -> str:
    """The name of the bundled checkpoint, or the path of one that is written into `directory`."""
    if size == "tiny":
        return size
    from safetensors.torch import save_file
    from snac import SNAC
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    script = _script(TINY_SCRIPT)
    script.CUSTOM_TOKENS = 10 + 7 * CODEBOOK + 2
    config = LlamaConfig(
        vocab_size=script.CUSTOM + script.CUSTOM_TOKENS,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        tie_word_embeddings=True,
        bos_token_id=script.FIRST_SPECIAL,
        eos_token_id=script.CUSTOM + 2,
        dtype=torch.bfloat16,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(directory / "llm")
    script.make_tokenizer().save(str(directory / "llm" / "tokenizer.json"))
    codec: dict[str, Any] = {
        "sampling_rate": 24000,
        "encoder_dim": 48,
        "encoder_rates": [2, 4, 8, 8],
        "decoder_dim": 1024,
        "decoder_rates": [8, 8, 4, 2],
        "attn_window_size": None,
        "codebook_size": CODEBOOK,
        "codebook_dim": 8,
        "vq_strides": [4, 2, 1],
        "noise": True,
        "depthwise": True,
    }
    (directory / "snac").mkdir()
    (directory / "snac" / "config.json").write_text(json.dumps(codec))
    state = {name: tensor.contiguous() for name, tensor in SNAC(**codec).state_dict().items()}
    save_file(state, directory / "snac" / "model.safetensors")
    return str(directory)


def _script(path: Path) -> Any:
    """A script as a module."""
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def measure(size: str, servers: Mapping[str, Server], options: argparse.Namespace) -> Iterator[Figures]:
    """Every placement at every batch size, in turn within each round, after one that is not counted."""
    for batch in options.batches:
        rounds: dict[str, list[Round]] = {name: [] for name in servers}
        for number in range(options.rounds + 1):
            for name, server in servers.items():
                done = server.speak(batch, options.ids)
                if number:
                    rounds[name].append(done)
        sounds = {tuple(each.audio for each in mine) for mine in rounds.values()}
        assert len(sounds) == 1, "the same seeds, the same sound"
        for name, mine in rounds.items():
            yield Figures.of(size, name, batch, mine)


def table(size: str, figures: Sequence[Figures]) -> Table:
    """The figures of one size."""
    columns = ("placement", "batch", "first audio, ms", "audio s/s", "CPU s per audio s", "busiest process")
    shown = Table(*columns, title=f"Orpheus, {size}")
    for each in figures:
        shown.add_row(
            each.placement,
            str(each.batch),
            f"{each.first_audio_ms:.0f} ({each.median_first_audio_ms:.0f})",
            f"{each.audio_per_second:.2f} ({each.median_audio_per_second:.2f})",
            f"{each.cpu_all:.3f}",
            f"{each.cpu_busiest:.3f}",
        )
    return shown


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=("codec", "tiny"), default=["codec", "tiny"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ids", type=int, default=84, help="the most ids of a request; seven are 85 ms of audio")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "placements.json")
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ[env.PLUGINS.name] = "mstar-orpheus"
    registry = load_registry()
    results: list[Figures] = []
    for size in options.size:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            chosen = {"orpheus": checkpoint(size, directory)}
            servers = {}
            for name, fields in PLACEMENTS.items():
                placement, before = Placement.model_validate(fields), children()
                service = Service.start(
                    ["orpheus"], checkpoints=chosen, placement=placement, registry=registry, processes=True
                )
                servers[name] = Server(stack.enter_context(service), sorted(children() - before))
            figures = list(measure(size, servers, options))
        Console().print(table(size, figures))
        results += figures
    settings = {
        "load": os.getloadavg(),
        "ids": options.ids,
        "rounds": options.rounds,
        "cpus": os.cpu_count(),
        "torch": torch.__version__,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps({"settings": settings, "figures": [asdict(each) for each in results]}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
