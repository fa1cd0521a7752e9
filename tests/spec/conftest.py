"""Builders of small specifications: a text in, a writer that streams to a speaker, audio out."""

from types import SimpleNamespace

import pytest

from mstar_core.spec.chunks import FixedChunkPolicy
from mstar_core.spec.graph import (
    FLAG,
    DynamicLoop,
    Emit,
    Node,
    Param,
    Port,
    RequestInput,
    Run,
    Sequential,
    StreamEnd,
    StreamingEdge,
    Walk,
)
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig, ModelSpec
from mstar_core.spec.params import Parameter


def node(name, inputs, outputs, **changes):
    return Node(
        **{"name": name, "engine": "stateless", "inputs": inputs, "outputs": outputs, "factory": "toy.nodes:build"}
        | changes
    )


def card(**changes):
    tiny = Checkpoint(name="tiny", source="toy:tiny")
    values = {"name": "toy", "family": "toy", "summary": "", "inputs": ("text",), "outputs": ("audio",)}
    return ModelCard(**values | {"checkpoints": (tiny,)} | changes)


READER = node("reader", (Port("prompt", "int64", ("ids",)),), (Port("item", "int64", ()), Port("stop", FLAG)))
WRITER = node(
    "writer", (Port("item", "int64", ()),), (Port("item", "int64", ()), Port("sound", "float32"), Port("stop", FLAG))
)
SPEAKER = node("speaker", (Port("sound", "float32"),), (Port("audio", "float32", ("samples",)),))

READ = Walk(name="read", partition="writing", body=Run("reader"), reports=("stop",))
WRITE = Walk(name="write", partition="writing", body=DynamicLoop(Run("writer"), at_most=Param("most"), until="stop"))
SPEAK = Walk(
    name="speak",
    partition="speaking",
    body=DynamicLoop(Sequential(Run("speaker"), Emit("audio", "audio")), None, StreamEnd("speaker", "sound")),
)
EDGE = StreamingEdge(source="writer.sound", target="speaker.sound", policy=FixedChunkPolicy(2))
MOST = Parameter(name="most", kind="int", default=10, minimum=1, maximum=100)
PROMPT = RequestInput(name="prompt", dtype="int64", shape=("ids",), modality="text")


def model(**changes):
    parameters = changes.pop("parameters", (MOST,))
    values = {
        "card": card(),
        "config": ModelConfig(values=None, parameters=parameters),
        "nodes": (READER, WRITER, SPEAKER),
        "walks": (READ, WRITE, SPEAK),
        "edges": (EDGE,),
        "inputs": (PROMPT,),
        "machine": None,
    }
    return ModelSpec(**values | changes)


@pytest.fixture
def toy():
    """The toy model's parts and the builders; `toy.model(walks=...)` is the model with other walks."""
    return SimpleNamespace(
        node=node,
        card=card,
        model=model,
        reader=READER,
        writer=WRITER,
        speaker=SPEAKER,
        read=READ,
        write=WRITE,
        speak=SPEAK,
        edge=EDGE,
        prompt=PROMPT,
        most=MOST,
    )
