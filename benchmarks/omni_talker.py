"""The talker's step taken apart: its decoder, its code predictor, and the rest (sampling, scheduling, caches)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.speech.node import LISTEN, TalkerNode
from mstar_qwen_omni.walks import nodes
from omni_peers import GREEDY, Job, TransformersPeer
from rich.table import Table
from torch import nn

from mstar_core.engines.base import BatchLimits, Call, Chunk, EngineSettings, NodeContext, NodeRequest
from mstar_core.engines.build import CORE_ENGINES, build_engine

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The talker's step of one peer, in milliseconds per frame of all requests: medians over rounds."""

    size: str
    peer: str
    batch: int
    decoder: float
    predictor: float
    rest: float


class Clock:
    """Adds up the time inside modules, by name: that of the calls that `counts` is true for, given their arguments."""

    def __init__(self, modules: Mapping[str, nn.Module], counts: Callable[[Mapping[str, Any]], bool]) -> None:
        self.seconds = dict.fromkeys(modules, 0.0)
        self._counts = counts
        for name, module in modules.items():
            module.register_forward_pre_hook(self._begin)
            module.register_forward_hook(self._end(name), with_kwargs=True)
        self._began: list[float] = []

    def take(self) -> dict[str, float]:
        """The times since the last call."""
        taken, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        return taken

    def _begin(self, module: nn.Module, given: Any) -> None:
        self._began.append(time.perf_counter())

    def _end(self, name: str) -> Callable[..., None]:
        def end(module: nn.Module, given: tuple[Any, ...], named: Any, made: Any) -> None:
            seconds = time.perf_counter() - self._began.pop()
            if self._counts(named):
                self.seconds[name] += seconds

        return end


class TalkerPeer:
    """The talker in its engine, without a worker: prompts are read, then every request makes frames."""

    def __init__(self, directory: Path, *, compiled: bool = True) -> None:
        self.name = "M*" if compiled else "M*, not compiled"
        self._config = QwenOmniConfig.read(directory)
        node = next(node for node in nodes(self._config) if node.name == "talker")
        context = NodeContext(node=node, config=self._config, checkpoint=directory, device=CPU, dtype=torch.float32)
        settings = EngineSettings(kv_tokens=32768, compile=compiled)
        self.engine = build_engine(CORE_ENGINES["kv_cache"], context, settings)
        talker: TalkerNode = self.engine.node  # type: ignore[attr-defined]
        modules = {"decoder": talker.model.decoder, "predictor": talker.model.predictor}
        self._clock = Clock(modules, lambda named: True)
        self._keys = iter(range(1, 1 << 30))

    def frames(self, batch: int, job: Job) -> tuple[float, float, float]:
        """Seconds per frame: decoder, predictor, rest."""
        requests = [NodeRequest(next(self._keys), GREEDY | self._unset(), seed) for seed in range(batch)]
        for request in requests:
            self.engine.open(request)
        self._round(LISTEN, requests, 0, [None] * batch)
        self._clock.take()
        feedback: list[Any] = [None] * batch
        began = time.perf_counter()
        for step in range(1, 1 + job.frames):
            feedback = self._round("talk", requests, step, feedback)
        seconds = time.perf_counter() - began
        for request in requests:
            self.engine.close(request)
        taken = self._clock.take()
        decoder, predictor = taken["decoder"] / job.frames, taken["predictor"] / job.frames
        return decoder, predictor, seconds / job.frames - decoder - predictor

    def _unset(self) -> dict[str, Any]:
        names = ("talker_top_k", "talker_top_p", "predictor_top_k", "predictor_top_p")
        return {**dict.fromkeys(names), "voice": next(iter(self._config.talker.codec.speakers))}

    def _round(self, walk: str, requests: list[NodeRequest], step: int, feedback: Sequence[Any]) -> list[Any]:
        width = self._config.thinker.hidden
        item = torch.zeros(20, 2 * width + 1) if step == 0 else torch.zeros(1, width)
        fixed = {
            "text": Chunk((item,), 0, step, False),
            "turns": torch.tensor([[0, 20]]),
            "positions": torch.arange(20.0).expand(3, -1),
        }
        calls = [
            Call(request, walk, {**fixed, "feedback": last}, step)
            for request, last in zip(requests, feedback, strict=True)
        ]
        batch = self.engine.collect(walk, calls, BatchLimits(tokens=4096))
        assert batch is not None
        self.engine.run(batch)
        return [dict(made)["feedback"] if step else None for made in self.engine.finish(batch)]  # type: ignore[arg-type]


class TransformersTalker:
    """The talker inside `generate`: one request after the other, so that a frame of a batch is one of each."""

    name = "transformers"

    def __init__(self, peer: TransformersPeer) -> None:
        self._peer = peer
        self._clock = Clock({"decoder": peer.model.talker.model}, _is_step)

    def frames(self, batch: int, job: Job) -> tuple[float, float, float]:
        """Seconds per frame: decoder, predictor, rest."""
        talker = self._peer.model.talker
        predictor, whole = _Timed(talker.code_predictor.generate), _Timed(talker.generate)
        talker.code_predictor.generate, talker.generate = predictor, whole
        self._clock.take()
        try:
            self._peer.speak(job.prompts(1), job)
        finally:
            talker.code_predictor.generate, talker.generate = predictor.function, whole.function
        decoder = self._clock.take()["decoder"]
        rest = whole.seconds - decoder - predictor.seconds
        share = batch / job.frames
        return share * decoder, share * predictor.seconds, share * rest


class _Timed:
    """A function, and how long it took in all."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds = 0.0

    def __call__(self, *given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.function(*given, **named)
        finally:
            self.seconds += time.perf_counter() - began


def _is_step(named: Mapping[str, Any]) -> bool:
    """Whether a call of the reference's talker is one of a single row."""
    rows: int = named["inputs_embeds"].shape[1]
    return rows == 1


def measure_steps(
    size: str, peers: Sequence[TalkerPeer | TransformersTalker], batches: Sequence[int], rounds: int, job: Job
) -> list[Step]:
    """Every peer's talker with every number of requests, alternating within each round."""
    results = []
    for batch in batches:
        taken: dict[str, list[tuple[float, float, float]]] = {peer.name: [] for peer in peers}
        for _ in range(rounds):
            for peer in peers:
                taken[peer.name].append(peer.frames(batch, job))
        for name, parts in taken.items():
            decoder, predictor, rest = (1e3 * statistics.median(part[axis] for part in parts) for axis in range(3))
            results.append(Step(size=size, peer=name, batch=batch, decoder=decoder, predictor=predictor, rest=rest))
    return results


def step_table(results: Sequence[Step]) -> Table:
    """The talker's step."""
    shown = Table(
        "size", "peer", "requests", "decoder", "predictor", "rest", "ms/frame", "per request", title="The talker's step"
    )
    for each in results:
        whole = each.decoder + each.predictor + each.rest
        figures = (each.decoder, each.predictor, each.rest, whole, whole / each.batch)
        shown.add_row(each.size, each.peer, str(each.batch), *(f"{figure:.2f}" for figure in figures))
    return shown
