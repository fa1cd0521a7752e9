"""The recorded cases, and the language model on its engine without a service around it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from mstar_orpheus.config import OrpheusConfig
from mstar_orpheus.lm import LanguageModel
from mstar_orpheus.walks import nodes
from safetensors.torch import load_file

from mstar_core.engines.base import BatchLimits, Call, EngineSettings, NodeContext, NodeRequest
from mstar_core.engines.kv_cache import KVCacheEngine
from mstar_core.spec.graph import Node, Port

GREEDY = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "slot_mask": True,
}


class Overheard(LanguageModel):
    """The node as it is, whose logits are kept."""

    def __init__(self, context):
        super().__init__(context)
        self.heard = []

    def forward(self, step):
        logits = self.model.logits(step.last(self.model(step.tokens("ids"), step)))
        self.heard.append(logits.clone())
        return {"token": step.sample(logits, "audio")}


class TeacherForced(LanguageModel):
    """Logits at every position of the ids that it is given."""

    host_outputs = ()
    run_ahead = ()

    def forward(self, step):
        return {"logits": step.split(self.model.logits(self.model(step.tokens("ids"), step)))}

    def finish(self, call, row):
        return {}


@dataclass
class Harness:
    """A language model on its engine, driven call by call."""

    checkpoint: Path
    kind: type[LanguageModel]
    limits: BatchLimits = field(default_factory=BatchLimits)
    params: Mapping[str, Any] = field(default_factory=lambda: GREEDY)

    def __post_init__(self):
        config = OrpheusConfig.read(self.checkpoint)
        node = nodes(config)[0]
        node = Node(
            name="lm",
            engine="kv_cache",
            inputs=node.inputs,
            outputs=(*node.outputs, Port("logits", "float32", ("tokens", "vocab"), sparse=True)),
            factory=self.kind,
        )
        context = NodeContext(
            node=node, config=config, checkpoint=self.checkpoint, device=torch.device("cpu"), dtype=torch.float32
        )
        self.node = self.kind(context)
        self.engine = KVCacheEngine.build(self.node, context, EngineSettings(kv_tokens=4096))
        self.request = NodeRequest(1, self.params, seed=0)
        self.engine.open(self.request)

    def call(self, walk, ids):
        """One call to its end; its outputs."""
        call = Call(self.request, walk, {"ids": ids}, self.request.runs)
        self.request.runs += 1
        while True:
            batch = self.engine.collect(walk, [call], self.limits)
            self.engine.run(batch)
            (outputs,) = self.engine.finish(batch)
            if isinstance(outputs, Exception):
                raise outputs
            if outputs is not None:
                return outputs

    def take_over(self, other):
        """Go on with the request of another harness, which is empty afterwards."""
        batch = other.engine.leave(other.request)
        other.engine.run(batch)
        self.engine.enter(self.request, other.engine.left(batch))
        self.request.runs = other.request.runs

    def generate(self, prompt, most):
        """Ids up to and including the stop id, and the logits that chose them."""
        outputs, ids = self.call("prefill", prompt), []
        while True:
            ids.append(int(outputs["token"].tensor()))
            if outputs["stop"] or len(ids) == most:
                return ids, torch.cat(self.node.heard)
            outputs = self.call("decode", outputs["token"])


@pytest.fixture(scope="session")
def cases(golden_dir):
    return load_file(golden_dir / "cases.safetensors")


@pytest.fixture(scope="session")
def facts(golden_dir):
    return json.loads((golden_dir / "cases.json").read_text())


@pytest.fixture(scope="session")
def spoken(facts):
    """The recorded replies by name."""
    return {name: case for name, case in facts["cases"].items() if case["kind"] == "lm"}


@pytest.fixture
def overheard(golden_dir):
    return Harness(golden_dir, Overheard)


@pytest.fixture
def sampling(golden_dir):
    """Builds harnesses of the node that sample with a penalty, as requests do by default."""
    params = GREEDY | {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1}
    return lambda: Harness(golden_dir, Overheard, params=params)


@pytest.fixture
def teacher_forced():
    """Builds a harness for a checkpoint; its prefills are cut into steps of 32 tokens."""
    return lambda checkpoint: Harness(checkpoint, TeacherForced, BatchLimits(tokens=32))
