"""The thinker on its engine, driven call by call, and the recorded conversations as it is given them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.thinker.node import Thinker
from mstar_qwen_omni.walks import nodes
from safetensors.torch import load_file

from mstar_core.engines.base import BatchLimits, Call, EngineSettings, NodeContext, NodeRequest
from mstar_core.engines.kv_cache import KVCacheEngine
from mstar_core.engines.static_steps import Capture

GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class Recorded:
    """A recorded conversation; media come as the rows that the reference's encoders made of them."""

    name: str
    facts: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    config: QwenOmniConfig

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    @property
    def ids(self) -> torch.Tensor:
        return self["input_ids"]

    @cached_property
    def turns(self) -> torch.Tensor:
        """Where the user's turns start and stop, [turns, 2]."""
        ids = self.config.ids
        starts = (self.ids == ids.im_start).nonzero().flatten().tolist()
        spans = pairwise(starts)
        return torch.tensor([[start, stop] for start, stop in spans if self.ids[start + 1] == ids.user])

    @property
    def user(self) -> torch.Tensor:
        """Which ids are the user's, bool [tokens]."""
        user = torch.zeros(len(self.ids), dtype=torch.bool)
        for start, stop in self.turns.tolist():
            user[start:stop] = True
        return user

    @property
    def media(self) -> torch.Tensor:
        """Which ids stand for media, bool [tokens]."""
        return torch.isin(self.ids, torch.tensor(self.config.ids.media))

    def brought(self) -> list[tuple[str, dict[str, torch.Tensor]]]:
        """The walks before the prompt is read, with what each brings: sounds and pictures in two pieces each."""
        calls = []
        if "audio_features_out" in self.tensors:
            calls += [("hear", {"sound": piece}) for piece in self["audio_features_out"].split(7)]
        if "vision_merged" in self.tensors:
            deep = torch.stack([self[f"vision_deepstack_{level}"] for level in range(3)])
            pieces = zip(self["vision_merged"].split(3), deep.split(3, dim=1), strict=True)
            calls += [("see", {"sight": sight, "depth": depth}) for sight, depth in pieces]
        return calls


@dataclass
class Harness:
    """A thinker on its engine, whose logits and accepted states are kept."""

    checkpoint: Path
    limits: BatchLimits = field(default_factory=BatchLimits)
    dtype: torch.dtype = torch.float32
    capture: Capture | None = None

    def __post_init__(self):
        self.config = QwenOmniConfig.read(self.checkpoint)
        declared = next(node for node in nodes(self.config) if node.name == "thinker")
        context = NodeContext(
            node=declared,
            config=self.config,
            checkpoint=self.checkpoint,
            device=torch.device("cpu"),
            dtype=self.dtype,
        )
        self.node = Thinker(context)
        self.engine = KVCacheEngine(self.node, context, EngineSettings(kv_tokens=4096), capture=self.capture)
        self.logits: list[torch.Tensor] = []
        self.accepted: list[torch.Tensor] = []
        decoder = self.node.model.decoder
        decoder.register_forward_hook(lambda _, given, made: self.logits.append(self.node.model.logits(made.final)))
        layer = decoder.blocks[self.config.talker.accept_layer - 1]
        layer.register_forward_hook(lambda _, given, made: self.accepted.append(made.clone()))

    def open(self, key: int = 1, seed: int = 0, **params: Any) -> NodeRequest:
        request = NodeRequest(key, GREEDY | params, seed=seed)
        self.engine.open(request)
        return request

    def call(self, request: NodeRequest, walk: str, **inputs: Any) -> Mapping[str, Any]:
        """One call to its end; its outputs."""
        (outputs,) = self.together([(request, walk, inputs)])
        return outputs

    def together(self, wanted: list[tuple[NodeRequest, str, Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
        """Calls of one walk, in as few batches as the limits allow; the outputs of each."""
        ports = dict.fromkeys(("said", "places", "user_turns", "sound", "sight", "depth"))
        calls = [Call(request, walk, {**ports, **inputs}, request.runs) for request, walk, inputs in wanted]
        for call in calls:
            call.request.runs += 1
        made: dict[int, Any] = {}
        while len(made) < len(calls):
            left = [call for call in calls if id(call) not in made]
            batch = self.engine.collect(left[0].walk, left, self.limits)
            self.engine.run(batch)
            for call, outputs in zip(batch.calls, self.engine.finish(batch), strict=True):
                if isinstance(outputs, Exception):
                    raise outputs
                if outputs is not None:
                    made[id(call)] = outputs
        return [made[id(call)] for call in calls]

    def read(self, request: NodeRequest, case: Recorded, *, aloud: bool = True) -> Mapping[str, Any]:
        """All that comes before the first token, and the prompt."""
        for walk, inputs in case.brought():
            assert self.call(request, walk, **inputs) == {}
        walk, inputs = self.prompt(case, aloud=aloud)
        return self.call(request, walk, **inputs)

    def prompt(self, case: Recorded, *, aloud: bool = True) -> tuple[str, dict[str, torch.Tensor]]:
        """The walk that reads a prompt, and its inputs."""
        prompt = {"said": case.ids, "places": case["thinker_position_ids"]}
        return ("read_aloud", {**prompt, "user_turns": case.turns}) if aloud else ("read", prompt)

    def generate(self, case: Recorded, key: int = 1, *, aloud: bool = True, **params: Any) -> list[int]:
        """The reply's ids, the one that ends it included, as long as the recorded one at most."""
        request = self.open(key, **params)
        outputs, ids = self.read(request, case, aloud=aloud), []
        while True:
            ids.append(int(outputs["token"].tensor()))
            if outputs["stop"] or len(ids) == len(case.facts["thinker_tokens"]):
                self.engine.close(request)
                return ids
            outputs = self.call(request, "write", said=outputs["token"])


@pytest.fixture(scope="session")
def conversations(golden_dir) -> dict[str, Recorded]:
    """The cases that have a prompt, by name."""
    config = QwenOmniConfig.read(golden_dir)
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in load_file(golden_dir / "cases.safetensors").items():
        case, _, inner = name.partition("/")
        tensors.setdefault(case, {})[inner] = tensor
    facts = json.loads((golden_dir / "cases.json").read_text())["cases"]
    return {
        name: Recorded(name, each, tensors[name], config) for name, each in facts.items() if each["kind"] == "generate"
    }


@pytest.fixture
def harness(golden_dir) -> Harness:
    """A thinker of the recorded checkpoint."""
    return Harness(golden_dir)


@pytest.fixture
def harness_of(golden_dir):
    """Builds a thinker of the recorded checkpoint: of batches so large, in that dtype, maybe with recorded steps."""

    def building(
        limits: BatchLimits | None = None, dtype: torch.dtype = torch.float32, capture: Capture | None = None
    ) -> Harness:
        return Harness(golden_dir, limits or BatchLimits(), dtype, capture)

    return building
