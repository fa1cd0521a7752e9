"""Pictures, edits and answers of BAGEL beside the reference's way of computing them, in alternating rounds.

    python benchmarks/bagel.py [--tasks paint,edit,answer] [--batches 1,4] [--dtypes bfloat16,float32]
                               [--rounds 3] [--steps 50] [--json FILE]

A middle size, random weights: language model of width 512, 6 layers, 8 heads, 2 KV heads; the ViT and the
autoencoder of the recorded cases. Prompts of 20 ids, pictures of 128 x 128, one thread.

    paint   a picture from a prompt, text guidance 4: two branches at the guided steps
    edit    a picture and a prompt, text guidance 4 and picture guidance 2: three branches
    answer  a picture and a prompt, then 32 ids of text, greedily

*Reference* is the loop of `bagel_reference.py`; of several requests it runs one after the other, as its interface has
it. *System* is M* as served, from the requests to the last output at the callers. Language models are in `dtype`
(bfloat16 is what is published), the rest is in float32. Both begin with the same noise, and before the clock runs their
pictures and texts are compared. Figures are medians over the rounds; ratios are of CPU seconds of the process, which
hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bagel_reference import Guidance, Reference
from mstar_bagel import plugin
from mstar_bagel.vision.pictures import Picture
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from mstar_core.client.engine import Engine, Result
from mstar_core.spec.content import Content, Image, Tensor, Text
from mstar_core.spec.placement import Dtype, KVPlace, NodeGroup, Placement, WorkerPlace
from mstar_core.testing.plugins import registry_with

PLUGIN = Path(__file__).parents[1] / "plugins" / "mstar-bagel"
RESULTS = Path(__file__).parent / "results" / "bagel.json"

MIDDLE = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
SIDE = 128
PROMPTS = ("a red bicycle at sea", "two cats under trees", "the moon over a lake", "old house in the fog")
"""Of 20 ids each, one per letter."""

ANSWER = 32
MOST_APART = 4.0
"""Levels by which pictures of two computations in bfloat16 may differ in the mean."""

SCALES = {"paint": (1.0, 0.4, "global"), "edit": (2.0, 0.0, "text_channel")}
"""Picture guidance, start of the guided interval and renorm, as the reference's notebook sets them."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One request, as both peers get it."""

    prompt: str
    picture: Picture
    noise: NDArray[np.float32]


def write_checkpoint(directory: Path) -> None:
    """The bundled checkpoint's layout at the middle size, with the autoencoder of the recorded cases."""
    spec = importlib.util.spec_from_file_location("make_tiny", PLUGIN / "scripts" / "make_tiny.py")
    assert spec is not None
    assert spec.loader is not None
    tiny = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny)
    recorded = PLUGIN / "tests" / "data" / "bagel"
    given = json.loads((recorded / "config.json").read_text())
    bagel = {**tiny.BAGEL, "vae_config": given["vae_config"]}
    vit = json.loads((recorded / "vit_config.json").read_text())
    tiny.write_checkpoint(directory, tiny.LLM | MIDDLE, vit, bagel, torch.float32)
    shutil.copyfile(recorded / "ae.safetensors", directory / "ae.safetensors")
    weights = load_file(directory / "ema.safetensors")
    weights["language_model.lm_head.weight"][tiny.BYTES :] = 0  # no text ends before its last id
    save_file(weights, directory / "ema.safetensors")


class ReferencePeer:
    """The reference's computation, one request after the other."""

    name = "reference"

    def __init__(self, directory: Path, dtype: Dtype, steps: int) -> None:
        self._model = Reference(directory, getattr(torch, dtype))
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._steps = steps

    def run(self, task: str, asked: Sequence[Asked]) -> list[Any]:
        """A picture or a text for each request."""
        return [self._answer(each) if task == "answer" else self._paint(task, each) for each in asked]

    def _paint(self, task: str, asked: Asked) -> Picture:
        img_scale, start, renorm = SCALES[task]
        guidance = Guidance(steps=self._steps, text_scale=4.0, img_scale=img_scale, interval_start=start, renorm=renorm)
        picture = asked.picture if task == "edit" else None
        return self._model.paint(self._ids(asked), picture, asked.noise, guidance)

    def _answer(self, asked: Asked) -> str:
        said: str = self._tokenizer.decode(self._model.answer(self._ids(asked), asked.picture, ANSWER))
        return said

    def _ids(self, asked: Asked) -> list[int]:
        ids: list[int] = self._tokenizer.encode(asked.prompt).ids
        assert len(ids) == 20
        return ids


class SystemPeer:
    """M* in one process; requests of a batch are sent at once."""

    name = "system"

    def __init__(self, directory: Path, dtype: Dtype, steps: int, batch: int) -> None:
        group = NodeGroup(nodes=("llm",), dtype=dtype, kv=KVPlace(tokens=1024 * batch))
        placement = Placement(workers={"main": WorkerPlace(device="cpu", threads=1)}, groups=(group,))
        self._engine = Engine("bagel", checkpoint=directory, placement=placement, registry=registry_with(plugin))
        self._clients = ThreadPoolExecutor(batch)
        self._steps = steps

    def run(self, task: str, asked: Sequence[Asked]) -> list[Any]:
        """As the reference."""
        results = list(self._clients.map(lambda each: self._ask(task, each), asked))
        return [each.text if task == "answer" else each.images[0].pixels for each in results]

    def _ask(self, task: str, asked: Asked) -> Result:
        content: list[Content] = [Text(asked.prompt)]
        if task != "paint":
            content.insert(0, Image(asked.picture))
        if task == "answer":
            return self._engine.generate(content, outputs=["text"], max_tokens=ANSWER)
        content.append(Tensor("noise", asked.noise))
        size: dict[str, Any] = {"height": SIDE, "width": SIDE} if task == "paint" else {}
        return self._engine.generate(
            content, outputs=["image"], steps=self._steps, text_scale=4.0, sample_posterior=False, **size
        )

    def close(self) -> None:
        """Stop it."""
        self._clients.shutdown()
        self._engine.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Medians over rounds of one comparison, in seconds."""

    task: str
    batch: int
    dtype: Dtype
    reference_cpu_s: float
    reference_wall_s: float
    system_cpu_s: float
    system_wall_s: float
    apart: float

    @property
    def ratio(self) -> float:
        """How many times less CPU the system takes."""
        return self.reference_cpu_s / self.system_cpu_s


def requests(batch: int) -> list[Asked]:
    """As many requests, each with its own prompt, picture and noise."""
    generator = np.random.default_rng(1)
    return [
        Asked(
            PROMPTS[index % len(PROMPTS)],
            generator.integers(0, 256, (SIDE, SIDE, 3), np.uint8),
            generator.standard_normal(((SIDE // 16) ** 2, 64), np.float32),
        )
        for index in range(batch)
    ]


def apart(made: Sequence[Any], wanted: Sequence[Any], dtype: Dtype) -> float:
    """By how many levels of 255 pictures differ in the mean. In float32 texts are equal, and no value of a picture is
    off by more than one level; bfloat16 rounds differently in another order of sums."""
    if isinstance(wanted[0], str):
        assert dtype == "bfloat16" or list(made) == list(wanted), f"{made} instead of {wanted}"
        return 0.0
    difference = np.abs(np.stack(made).astype(int) - np.stack(wanted).astype(int))
    mean = float(difference.mean())
    assert mean <= (MOST_APART if dtype == "bfloat16" else 0.005), f"pictures differ by {mean} levels in the mean"
    assert dtype == "bfloat16" or difference.max() <= 1, f"pictures differ by {difference.max()} levels"
    return mean


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """CPU seconds of the process, and wall seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def compare(task: str, batch: int, dtype: Dtype, peers: tuple[ReferencePeer, SystemPeer], rounds: int) -> Measured:
    """Both peers in turn, after one run of each whose results must agree."""
    asked = requests(batch)
    reference, system = peers
    difference = apart(system.run(task, asked), reference.run(task, asked), dtype)
    taken = [[timed(partial(peer.run, task, asked)) for peer in peers] for _ in range(rounds)]
    middle = [[statistics.median(round[peer][axis] for round in taken) for axis in (0, 1)] for peer in (0, 1)]
    return Measured(
        task=task,
        batch=batch,
        dtype=dtype,
        reference_cpu_s=middle[0][0],
        reference_wall_s=middle[0][1],
        system_cpu_s=middle[1][0],
        system_wall_s=middle[1][1],
        apart=difference,
    )


def table(results: Sequence[Measured]) -> Table:
    """Each comparison with its ratio."""
    seconds_of = ("reference CPU s", "system CPU s", "ratio", "reference wall s", "system wall s")
    shown = Table("task", "batch", "dtype", *seconds_of)
    for each in results:
        seconds = (each.reference_cpu_s, each.system_cpu_s, each.reference_wall_s, each.system_wall_s)
        before, after, *walls = (f"{second:.2f}" for second in seconds)
        shown.add_row(each.task, str(each.batch), each.dtype, before, after, f"{each.ratio:.2f}", *walls)
    return shown


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="paint,edit,answer")
    parser.add_argument("--batches", default="1,4")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path, default=RESULTS, help="where to write the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    batches = [int(each) for each in arguments.batches.split(",")]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_checkpoint(directory)
        results = []
        for dtype in arguments.dtypes.split(","):
            reference = ReferencePeer(directory, dtype, arguments.steps)
            with closing(SystemPeer(directory, dtype, arguments.steps, max(batches))) as system:
                results += [
                    compare(task, batch, dtype, (reference, system), arguments.rounds)
                    for task in arguments.tasks.split(",")
                    for batch in batches
                ]
    Console().print(table(results))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    figures = [{**asdict(each), "steps": arguments.steps, "ratio": each.ratio} for each in results]
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
