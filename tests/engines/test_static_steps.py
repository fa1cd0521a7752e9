import pytest
import torch

from mstar_core.engines.attention.base import KVLayout
from mstar_core.engines.base import BatchLimits, Call, EngineSettings, NodeContext, NodeRequest
from mstar_core.engines.kv_cache import KVCacheEngine
from mstar_core.engines.kv_node import KVNode, token_count
from mstar_core.engines.sampling import SamplerSpec
from mstar_core.engines.segments import Segment
from mstar_core.engines.static_steps import CudaGraphs, run_again
from mstar_core.spec.graph import Node, Port

VOCAB, HEADS, SIZE = 60, 2, 64
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = [
    pytest.param(("cpu", run_again), id="cpu"),
    pytest.param(("cuda", CudaGraphs), id="cuda", marks=on_gpu),
]


class Looking(KVNode):
    """One attention layer; adds a number that every call brings along."""

    kv = KVLayout(layers=1, kv_heads=HEADS, head_dim=SIZE)
    samplers = {
        "main": SamplerSpec(vocab=VOCAB, temperature="temperature", repetition_penalty="penalty", history="ids")
    }
    host_outputs = ("ids",)

    def __init__(self, context):
        generator = torch.Generator().manual_seed(0)
        width = HEADS * SIZE
        self.device, self.dtype = context.device, context.dtype
        self.embedding = torch.randn(VOCAB, width, generator=generator).to(self.device, self.dtype)
        self.mix = (torch.randn(width, 3 * width, generator=generator) / width**0.5).to(self.device, self.dtype)
        self.runs = 0

    def segments(self, call):
        return Segment(tokens=token_count(call.inputs["ids"]))

    def forward(self, step):
        self.runs += 1
        x = self.embedding[step.tokens("ids")] + step.expand(step.rows("shift"))[:, None].to(self.dtype)
        q, k, v = (x @ self.mix).view(-1, 3, HEADS, SIZE).unbind(1)
        out = step.last(step.attend(0, q, k, v).flatten(1))
        return {"ids": step.sample(out @ self.embedding.T, "main"), "states": out}


class Watching(Looking):
    """Looks at its calls, which a recorded step cannot offer."""

    def forward(self, step):
        assert len(step.calls) >= 0
        return super().forward(step)


def build(node, device="cpu", capture=None):
    ports = (Port("ids", "int64", ("n",), tokens=0), Port("shift", "float32", ()))
    spec = Node(name="lm", engine="kv_cache", inputs=ports, outputs=(Port("ids"), Port("states")), factory=node)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    context = NodeContext(node=spec, config=None, checkpoint=None, device=torch.device(device), dtype=dtype)
    return KVCacheEngine(node(context), context, EngineSettings(kv_tokens=2048, requests=32), capture=capture)


def generate(engine, counts):
    """Ids and last state of requests of which `counts[step]` decode in each step, all prefilled before."""
    requests = []
    for key in range(max(counts)):
        request = NodeRequest(key + 1, {"temperature": 0.7 * (key % 2), "penalty": 1.5 if key % 3 else 1.0}, key)
        engine.open(request)
        requests.append(request)
    inputs = [torch.arange(3 + key) for key in range(len(requests))]
    made = [[] for _ in requests]
    for step, count in enumerate([len(requests), *counts]):
        calls = [
            Call(request, "walk", {"ids": value, "shift": torch.tensor(float(request.key))}, step)
            for request, value in zip(requests[:count], inputs, strict=False)
        ]
        batch = engine.collect("walk", calls, BatchLimits())
        engine.run(batch)
        for place, outcome in enumerate(engine.finish(batch)):
            inputs[place] = outcome["ids"]
            made[place].append((int(outcome["ids"].tensor()), outcome["states"].tensor().sum().item()))
    for request in requests:
        engine.close(request)
    engine.check_integrity()
    return made


@pytest.mark.parametrize("where", DEVICES)
def test_replayed_steps_when_batches_change_size_then_give_what_direct_ones_do(where):
    device, capture = where
    counts = [5, 5, 5, 7, 7, 1, 1, 1, 7, 7, 5, 2, 2, 2, 7] * 2
    static = build(Looking, device, capture() if capture is CudaGraphs else capture)
    direct = generate(build(Looking, device), counts)
    replayed = generate(static, counts)
    assert [[token for token, _ in row] for row in replayed] == [[token for token, _ in row] for row in direct]
    for ours, theirs in zip(replayed, direct, strict=True):
        assert [state for _, state in ours] == pytest.approx([state for _, state in theirs], rel=1e-4, abs=1e-4)
    assert 0 < len(static.runner.recorded) < len(counts)


def test_outputs_when_the_step_is_replayed_again_then_stay_as_they_were():
    engine = build(Looking, capture=run_again)
    request = NodeRequest(1, {"temperature": 0.0, "penalty": 1.0}, 0)
    engine.open(request)
    states, value = [], torch.arange(4)
    for step in range(5):
        call = Call(request, "walk", {"ids": value, "shift": torch.tensor(0.0)}, step)
        batch = engine.collect("walk", [call], BatchLimits())
        engine.run(batch)
        (outcome,) = engine.finish(batch)
        states.append((outcome["states"].tensor(), outcome["states"].tensor().clone()))
        value = outcome["ids"]
    assert all(torch.equal(now, then) for now, then in states)


def test_history_when_a_replayed_call_is_dropped_then_is_as_before():
    engine = build(Looking, capture=run_again)
    request = NodeRequest(1, {"temperature": 0.0, "penalty": 2.0}, 0)
    engine.open(request)
    value = torch.arange(4)
    for step in range(4):
        batch = engine.collect(
            "walk", [Call(request, "walk", {"ids": value, "shift": torch.tensor(0.0)}, step)], BatchLimits()
        )
        engine.run(batch)
        before = engine.samplers["main"].history.clone()
        (outcome,) = engine.finish(batch)
        value = outcome["ids"]
    call = Call(request, "walk", {"ids": value, "shift": torch.tensor(0.0)}, 4)
    batch = engine.collect("walk", [call], BatchLimits())
    engine.run(batch)
    assert not torch.equal(engine.samplers["main"].history, before)
    engine.drop(batch, call)
    for work in engine.work.take():
        work()
    assert torch.equal(engine.samplers["main"].history, before)


def test_node_when_it_looks_at_calls_in_a_recorded_step_then_is_told_so():
    engine = build(Watching, capture=run_again)
    with pytest.raises(RuntimeError, match="no single calls"):
        generate(engine, [2, 2, 2, 2])
