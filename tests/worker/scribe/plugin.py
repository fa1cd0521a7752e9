"""The model `scribe`: ids in, ids out, from a node with a KV cache, a sampler, and state that travels.

Every prompt of a request is read (`prefill`), then continued twice from the same place if asked for (`fork`), then
answered (`decode`), and the next one is read on top of that; so a placement of the walks on two workers moves all that
the node holds back and forth. Each walk ends with a digest of the ids that the node's state has kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mstar_core import hookimpl
from mstar_core.spec.content import Prepared, Tensor
from mstar_core.spec.graph import (
    FLAG,
    DynamicLoop,
    Emit,
    Node,
    Parallel,
    Param,
    Port,
    RequestInput,
    Run,
    Sequential,
    Walk,
    WalkSet,
)
from mstar_core.spec.machine import AT_MOST, Start, Transition
from mstar_core.spec.model import Checkpoint, ModelCard, ModelConfig
from mstar_core.spec.params import Parameter

PARAMETERS = (
    Parameter(name="temperature", kind="float", default=0.0, minimum=0, doc="Of the sampler."),
    Parameter(name="penalty", kind="float", default=1.0, exclusive_minimum=0, doc="For repetitions."),
    Parameter(name="new", kind="int", default=8, minimum=2, maximum=400, doc="The most ids of one answer."),
    Parameter(name="endless", kind="bool", default=False, doc="Whether no id ends an answer."),
    Parameter(name="fork", kind="bool", default=False, doc="Whether to begin every answer twice."),
    Parameter(name="pause_ms", kind="float", default=0.0, minimum=0, doc="Time of every run, on the loop thread."),
    Parameter(name="pack_ms", kind="float", default=0.0, minimum=0, doc="Time of packing the state."),
    Parameter(name="gate", kind="bool", default=False, doc="Whether packing waits for the test."),
    Parameter(
        name="wrong",
        kind="str",
        default="",
        choices=("", "no pack", "pack", "unsendable", "unpack"),
        doc="What of the node goes wrong when it moves.",
    ),
)


@dataclass(frozen=True, slots=True)
class State:
    """The prompt at hand, of so many, and whether every answer had an end."""

    prompt: int
    prompts: int
    reason: str = "stop"


class Machine:
    """prefill, fork, decode for one prompt after another."""

    def start(self, request):
        state = State(0, len(request.inputs["prompt"]))
        return Transition(state=(state, request.params["fork"]), start=(Start("prefill", {"prompt": 0}),))

    def advance(self, state, event):
        place, fork = state
        match event.walk:
            case "prefill" if fork:
                return Transition(state=state, start=(Start("fork"),))
            case "prefill" | "fork" if not event.flags["stop"]:
                return Transition(state=state, start=(Start("decode"),))
        reason = "length" if event.how == AT_MOST else place.reason
        place = replace(place, prompt=place.prompt + 1, reason=reason)
        if place.prompt == place.prompts:
            return Transition(state=(place, fork), end=reason)
        return Transition(state=(place, fork), start=(Start("prefill", {"prompt": place.prompt}),))

    def demand(self, request):
        read = sum(shape.shape[0] for shape in request.inputs["prompt"])
        return {"lm": read + len(request.inputs["prompt"]) * request.params["new"]}


class Processor:
    """Tensors of ids, each a prompt."""

    def prepare(self, content, params):
        return Prepared(inputs={"prompt": [each.array for each in content]}, params=params)

    def render(self, prepared):
        return Renderer()


class Renderer:
    """Ids and digests as they come."""

    def output(self, modality, value):
        return Tensor("id", np.array(value))

    def finish(self):
        return ()

    def usage(self, tokens: Mapping[str, int]):
        return tokens


@hookimpl
def mstar_models():
    tiny = Checkpoint(name="tiny", source="mstar_core:testing")
    return [
        ModelCard(
            name="scribe", family="scribe", summary="", inputs=("tensor",), outputs=("tensor",), checkpoints=(tiny,)
        )
    ]


@hookimpl
def mstar_config(card, checkpoint):
    return ModelConfig(values=None, parameters=PARAMETERS)


@hookimpl
def mstar_nodes(card, config):
    return (
        Node(
            name="lm",
            engine="kv_cache",
            inputs=(Port("ids", "int64", tokens=0),),
            outputs=(Port("ids", "int64", ()), Port("stop", FLAG), Port("digest", "int64", ())),
            factory="mstar_scribe.nodes:Scribe",
        ),
    )


@hookimpl
def mstar_walks(card, config):
    end = Emit("digest", "tensor")
    left = Run("lm", outputs={"ids": "left_ids", "stop": "left_stop", "digest": "left_digest"})
    right = Run("lm", outputs={"ids": "right_ids"})
    both = Sequential(Parallel(left, right), Emit("left_ids", "tensor"), Emit("right_ids", "tensor"), end)
    loop = DynamicLoop(Sequential(Run("lm"), Emit("ids", "tensor")), at_most=Param("new", -1), until="stop")
    return WalkSet(
        walks=(
            Walk(
                name="prefill",
                partition="main",
                body=Sequential(Run("lm", inputs={"ids": "prompt"}), Emit("ids", "tensor"), end),
                reports=("stop",),
            ),
            Walk(name="fork", partition="main", body=both, reports=("stop",)),
            Walk(name="decode", partition="main", body=Sequential(loop, end)),
        ),
        inputs=(RequestInput(name="prompt", dtype="int64", shape=("n",), many=True),),
    )


@hookimpl
def mstar_state_machine(card, config):
    return Machine()


@hookimpl
def mstar_processor(card, config, checkpoint):
    return Processor()
