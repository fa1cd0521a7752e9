"""The node of `scribe`: two layers of attention with random weights; keeps, per request, the ids that it wrote."""

import threading
import time

import torch

from mstar_core.engines.attention.base import KVLayout
from mstar_core.engines.kv_node import KVNode, token_count
from mstar_core.engines.sampling import SamplerSpec
from mstar_core.engines.segments import Segment
from mstar_core.nn.linear import Linear

VOCAB, LAYERS, HEADS, SIZE, POSITIONS = 50, 2, 2, 16, 2048
WIDTH = HEADS * SIZE
STOP = 7

PACKING = threading.Event()
"""A request whose packing waits has come so far."""

GATE = threading.Event()
"""Lets packing go on that waits."""


class Scribe(KVNode):
    """Samples one id per call; the state is the list of them."""

    kv = KVLayout(layers=LAYERS, kv_heads=HEADS, head_dim=SIZE)
    samplers = {
        "main": SamplerSpec(vocab=VOCAB, temperature="temperature", repetition_penalty="penalty", history="ids")
    }
    host_outputs = ("ids",)
    run_ahead = ("ids",)

    def __init__(self, context):
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(VOCAB, WIDTH, generator=generator)
        self.places = torch.randn(POSITIONS, WIDTH, generator=generator)
        self.mixes = [linear((WIDTH, WIDTH, WIDTH), generator) for _ in range(LAYERS)]
        self.head = linear((VOCAB,), generator)

    def open(self, request):
        return []

    def pack(self, request):
        time.sleep(request.params["pack_ms"] / 1000)
        if request.params["gate"]:
            PACKING.set()
            assert GATE.wait(20)
        match request.params["wrong"]:
            case "no pack":
                return super().pack(request)
            case "pack":
                raise RuntimeError("told to fail")
            case "unsendable":
                return {"ids": torch.tensor(request.state)}
        return {"ids": list(request.state)}

    def unpack(self, request, packed):
        if request.params["wrong"] == "unpack":
            raise RuntimeError("told to fail")
        return list(packed["ids"])

    def segments(self, call):
        tokens = token_count(call.inputs["ids"])
        if call.walk == "fork":
            return Segment(tokens=tokens, sequence=f"branch {call.step % 2}", fork="main")
        return Segment(tokens=tokens)

    def forward(self, step):
        states = self.embedding[step.tokens("ids")] + self.places[step.positions]
        for layer, mix in enumerate(self.mixes):
            q, k, v = mix(states).view(-1, 3, HEADS, SIZE).unbind(1)  # each [tokens, heads, size]
            states = states + step.attend(layer, q, k, v).flatten(1)
        return {"ids": step.sample(self.head(step.last(states)), "main")}

    def finish(self, call, row):
        time.sleep(call.request.params["pause_ms"] / 1000)
        call.request.state.append(row["ids"])
        digest = 0
        for each in call.request.state:
            digest = (31 * digest + each) % 2**31
        stop = row["ids"] == STOP and not call.request.params["endless"]
        return {"stop": stop, "digest": torch.tensor(digest)}


def linear(outputs, generator):
    """A packed layer: a row's bits do not depend on its neighbours."""
    layer = Linear(WIDTH, outputs)
    layer.weight.data = torch.randn(layer.weight.shape, generator=generator) / WIDTH**0.5
    layer.pack()
    return layer
