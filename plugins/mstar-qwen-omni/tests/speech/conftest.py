"""The recorded cases that speak, and a talker that is run on them as the engine runs it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.speech.code2wav.decoder import Code2Wav
from mstar_qwen_omni.speech.node import TalkerNode
from safetensors.torch import load_file

from mstar_core.engines.base import BatchLimits, Call, Chunk, EngineSettings, NodeContext, NodeRequest
from mstar_core.engines.kernels import compiled_kernels, use_kernels
from mstar_core.engines.kv_cache import KVCacheEngine
from mstar_core.engines.static_steps import Capture
from mstar_core.spec.graph import FLAG, Node, Port

GREEDY = {
    "talker_temperature": 0.0,
    "talker_top_k": 50,
    "talker_top_p": 1.0,
    "talker_repetition_penalty": 1.0,
    "predictor_temperature": 0.0,
    "predictor_top_k": 50,
    "predictor_top_p": 0.8,
    "voice": "ethan",
}


@dataclass(frozen=True)
class Script:
    """What one request brings to the talker: its stream's items, its inputs and parameters, and how many frames it may
    make."""

    items: Sequence[torch.Tensor]
    turns: torch.Tensor
    positions: torch.Tensor
    params: Mapping[str, Any]
    frames: int
    seed: int = 0


@dataclass
class Speech:
    """What the talker made of one script: `first` holds the end, too, where it came to one."""

    first: list[int] = field(default_factory=list)
    codes: list[torch.Tensor] = field(default_factory=list)
    feedback: list[torch.Tensor] = field(default_factory=list)
    ended: bool = False


class Talking:
    """A talker node in its engine; `listen` and `talk` are run as the walks of the model are."""

    def __init__(
        self,
        context: NodeContext,
        node: Callable[[NodeContext], TalkerNode] = TalkerNode,
        *,
        compile: bool = False,
        capture: Capture | None = None,
    ) -> None:
        inputs = (Port("text"), Port("turns"), Port("positions"), Port("feedback", sparse=True))
        outputs = (Port("feedback", sparse=True), Port("codes", sparse=True), Port("stop", FLAG, sparse=True))
        spec = Node(name="talker", engine="kv_cache", inputs=inputs, outputs=outputs, factory=node)
        context = replace(context, node=spec)
        with use_kernels(compiled_kernels() if compile else None):
            self.node = node(context)
            settings = EngineSettings(kv_tokens=4096, compile=compile)
            self.engine = KVCacheEngine(self.node, context, settings, capture=capture)

    def speak(self, scripts: Sequence[Script], limits: BatchLimits | None = None) -> list[Speech]:
        """Run all scripts side by side; each until it ends or has its frames."""
        requests = [NodeRequest(key, script.params, script.seed) for key, script in enumerate(scripts)]
        speeches = [Speech() for _ in scripts]
        for request in requests:
            self.engine.open(request)
        self._run(
            "listen", [self._call(*each, "listen", 0, None) for each in zip(requests, scripts, strict=True)], limits
        )
        for step in range(1, 1 + max(script.frames for script in scripts)):
            going = [key for key, script in enumerate(scripts) if not speeches[key].ended and step <= script.frames]
            last = [speeches[key].feedback[-1] if speeches[key].feedback else None for key in going]
            calls = [
                self._call(requests[key], scripts[key], "talk", step, feedback)
                for key, feedback in zip(going, last, strict=True)
            ]
            for key, made in zip(going, self._run("talk", calls, limits), strict=True):
                self._take(speeches[key], made)
        for request in requests:
            self.engine.close(request)
        self.engine.check_integrity()
        return speeches

    def _call(self, request: NodeRequest, script: Script, walk: str, step: int, feedback: Any) -> Call:
        count = len(script.items)
        items = tuple(script.items[step : step + 1])
        chunk = Chunk(items, 0, min(step, count), final=step >= count - 1)
        inputs = {"text": chunk, "turns": script.turns, "positions": script.positions, "feedback": feedback}
        return Call(request, walk, inputs, step)

    def _run(self, walk: str, calls: list[Call], limits: BatchLimits | None) -> list[Mapping[str, Any]]:
        made: dict[int, Mapping[str, Any]] = {}
        while waiting := [call for call in calls if id(call) not in made]:
            batch = self.engine.collect(walk, waiting, limits or BatchLimits())
            self.engine.run(batch)
            for call, outcome in zip(batch.calls, self.engine.finish(batch), strict=True):
                if isinstance(outcome, Exception):
                    raise outcome
                if outcome is not None:
                    made[id(call)] = outcome
        return [made[id(call)] for call in calls]

    @staticmethod
    def _take(speech: Speech, made: Mapping[str, Any]) -> None:
        speech.ended = made["stop"]
        speech.feedback.append(made["feedback"].tensor().clone())
        if "codes" in made:
            speech.codes.append(made["codes"].tensor().clone())
            speech.first.append(int(speech.codes[-1][0]))


@dataclass(frozen=True)
class Case:
    """One recorded case that speaks."""

    facts: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    config: QwenOmniConfig
    embedding: torch.Tensor

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def turns(self) -> torch.Tensor:
        """Where the user's turns begin and end, `[turns, 2]`."""
        ids, special = self["input_ids"], self.config.ids
        begins = [*(ids == special.im_start).nonzero().flatten().tolist(), len(ids)]
        spans = itertools.pairwise(begins)
        return torch.tensor([[start, stop] for start, stop in spans if ids[start + 1] == special.user])

    def prompt(self) -> torch.Tensor:
        """The first item of the talker's stream, `[rows, 2 * hidden + 1]`."""
        ids = self["input_ids"]
        media = torch.isin(ids, torch.tensor(self.config.ids.media))
        rows = torch.cat([self["thinker_input_embeds"], self["thinker_hidden_accept"][: len(ids)], media[:, None]], 1)
        return torch.cat([rows[start:stop] for start, stop in self.turns().tolist()])

    def script(self, **params: Any) -> Script:
        """The case as the talker gets it."""
        spoken = self["thinker_tokens"][:-1]
        settings = {
            "voice": self.facts["speaker"],
            "talker_repetition_penalty": self.facts["talker_repetition_penalty"],
        }
        return Script(
            items=[self.prompt(), *self.embedding[spoken][:, None]],
            turns=self.turns(),
            positions=self["thinker_position_ids"],
            params=GREEDY | settings | params,
            frames=len(self.facts["talker_tokens"]),
        )


@pytest.fixture(scope="session")
def recorded(golden_dir) -> dict[str, torch.Tensor]:
    """All recorded tensors by `case/name`."""
    return load_file(golden_dir / "cases.safetensors")


@pytest.fixture(scope="session")
def spoken(golden_dir, recorded) -> Callable[[str], Case]:
    """A recorded case by its name."""
    facts = json.loads((golden_dir / "cases.json").read_text())["cases"]
    config = QwenOmniConfig.read(golden_dir)
    embedding = load_file(golden_dir / "model.safetensors")["thinker.model.embed_tokens.weight"]

    def get(name: str) -> Case:
        tensors = {key.partition("/")[2]: each for key, each in recorded.items() if key.startswith(f"{name}/")}
        return Case(facts[name], tensors, config, embedding)

    return get


@pytest.fixture(scope="session")
def talking(golden_dir, context) -> Talking:
    """The recorded checkpoint's talker."""
    return Talking(context(golden_dir))


@pytest.fixture
def talking_as(golden_dir, context) -> Callable[..., Talking]:
    """The recorded checkpoint's talker as a node of another class, on another dtype, or in another engine."""

    def making(
        node: Callable[[NodeContext], TalkerNode] = TalkerNode, dtype: torch.dtype = torch.float32, **settings: Any
    ) -> Talking:
        return Talking(replace(context(golden_dir), dtype=dtype), node, **settings)

    return making


@pytest.fixture(scope="session")
def code2wav(golden_dir) -> Code2Wav:
    """The recorded checkpoint's decoder of the codec."""
    config = QwenOmniConfig.read(golden_dir).code2wav
    return Code2Wav.load(golden_dir, config, device=torch.device("cpu"))
