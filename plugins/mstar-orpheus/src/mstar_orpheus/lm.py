"""The node `lm`: a Llama that writes audio ids, and on the host the parser that makes frames of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mstar_core.engines.base import Call, NodeContext, NodeRequest
from mstar_core.engines.kv_node import KVNode, token_count
from mstar_core.engines.sampling import SamplerSpec
from mstar_core.engines.segments import Segment
from mstar_core.engines.step import Step
from mstar_core.nn.llama import load_llama
from mstar_orpheus.codec.frames import FrameParser
from mstar_orpheus.config import OrpheusConfig, llm_directory

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Speaking:
    """One request's place: the step at which its segment began, and its parser."""

    parser: FrameParser
    began: int = 0


class LanguageModel(KVNode):
    """`prefill` reads a segment's prompt on a fresh sequence, `decode` goes on from the last id; both sample one id.

    With the slot mask, place p of the speech may only take ids of slot p mod 7, and end_of_speech where a frame begins.
    """

    host_outputs = ("token",)
    run_ahead = ("token",)

    def __init__(self, context: NodeContext) -> None:
        self.config: OrpheusConfig = context.config
        self.model = load_llama(
            llm_directory(context.checkpoint),
            self.config.llama,
            device=context.device,
            dtype=context.dtype,
            parallel=context.parallel,
        )
        self.kv = self.model.kv
        self.samplers = {
            "audio": SamplerSpec(
                vocab=self.config.llama.vocab,
                temperature="temperature",
                top_k="top_k",
                top_p="top_p",
                min_p="min_p",
                repetition_penalty="repetition_penalty",
                history="ids",
            )
        }
        self.masks = {"audio": slot_masks(self.config)}
        self.wrong_slot_ids = 0

    def open(self, request: NodeRequest) -> Speaking:
        """A parser for the request's ids."""
        return Speaking(FrameParser(self.config.snac, self.config.ids.audio))

    def pack(self, request: NodeRequest) -> dict[str, Any]:
        """The step at which the segment began, and where its parser stands."""
        state: Speaking = request.state
        return {"began": state.began, "parser": state.parser.pack()}

    def unpack(self, request: NodeRequest, packed: Mapping[str, Any]) -> Speaking:
        """Go on there."""
        state = self.open(request)
        state.began = packed["began"]
        state.parser.unpack(packed["parser"])
        return state

    def segments(self, call: Call) -> Segment:
        """A prompt replaces what the segment before it left in the cache."""
        if call.walk == "prefill":
            call.request.state.began = call.step
            return Segment(tokens=token_count(call.inputs["ids"]), truncate=0)
        return Segment(tokens=1)

    def forgets(self, call: Call) -> bool:
        """Every segment is penalised for its own repetitions only."""
        return call.walk == "prefill"

    def phases(self, call: Call) -> Mapping[str, int]:
        """The slot of the id to be sampled."""
        if not call.request.params["slot_mask"]:
            return {}
        return {"audio": (call.step - call.request.state.began) % self.config.snac.ids_per_frame}

    def forward(self, step: Step) -> Mapping[str, torch.Tensor]:
        """One id per call."""
        hidden = self.model(step.tokens("ids"), step)
        return {"token": step.sample(self.model.logits(step.last(hidden)), "audio")}

    def finish(self, call: Call, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Whether the speech has ended, and the frame that the id completed."""
        state: Speaking = call.request.state
        if call.walk == "prefill":
            state.parser.restart()
        if row["token"] == self.config.ids.end_of_speech:
            return {"stop": True, "frame": None}
        slips = state.parser.violations
        frame = state.parser.push(row["token"])
        self.wrong_slot_ids += state.parser.violations - slips
        return {"stop": False, "frame": None if frame is None else torch.tensor(frame)}

    def close(self, request: NodeRequest) -> None:
        """Say how often the model chose an id of a wrong slot."""
        state: Speaking | None = request.state
        if state is not None and state.parser.violations:
            _log.warning("%d ids stood in a wrong slot and cost a frame each", state.parser.violations)

    def metrics(self) -> Mapping[str, float]:
        """Ids of a wrong slot since the start; none while every request keeps the slot mask."""
        return {"wrong_slot_ids": self.wrong_slot_ids}


def slot_masks(config: OrpheusConfig) -> torch.Tensor:
    """Allowed ids by slot, bool [7, vocab]."""
    size, slots = config.snac.codebook_size, config.snac.ids_per_frame
    masks = torch.zeros(slots, config.llama.vocab, dtype=torch.bool)
    for slot in range(slots):
        first = config.ids.audio + slot * size
        masks[slot, first : first + size] = True
    masks[0, config.ids.end_of_speech] = True
    return masks
