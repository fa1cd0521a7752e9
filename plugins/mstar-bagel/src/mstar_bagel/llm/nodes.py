"""The node `llm`, and the optional ones that take contexts over from it: `llm_text`, `llm_image`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mstar_bagel.config import BagelConfig
from mstar_bagel.guidance import guided
from mstar_bagel.llm.contexts import APART, IMAGE, MAIN, TEXT, THINKING, Contexts
from mstar_bagel.llm.weights import load_backbone
from mstar_core.engines.base import Call, NodeContext, NodeRequest
from mstar_core.engines.kv_node import KVNode, token_count
from mstar_core.engines.sampling import SamplerSpec
from mstar_core.engines.segments import Segment
from mstar_core.engines.step import Step

_PORTS = {MAIN: "velocity", TEXT: "velocity_text", IMAGE: "velocity_image"}
_APART_PORTS = {TEXT: "apart_text", IMAGE: "apart_image"}
"""The port for each context's velocity, at `llm` and at the nodes apart."""

_MARKERS = 2
"""A picture's tokens lie between two markers; all of them are at one position."""


class LanguageModel(KVNode):
    """Reads texts and pictures into contexts, decodes text, and gives the velocities of a picture's latents.

    `read_*` and `prefill_*` append a segment to the contexts that are to see it. `decode` and `think` give one id a
    round. `image_gen` runs the picture between its markers on every context of the step, and keeps nothing of it.
    """

    host_outputs = ("token",)
    run_ahead = ("token",)

    def __init__(self, context: NodeContext) -> None:
        self.config: BagelConfig = context.config
        self.model = load_backbone(context)
        self.kv = self.model.kv
        self.device = context.device
        ids = self.config.ids
        self._bos = torch.tensor(ids.bos)
        self._markers = (ids.start_of_image, ids.end_of_image)
        alone = APART.get(context.node.name)
        if alone is None:
            self.held = (MAIN, *(name for node, name in APART.items() if node not in context.placed))
            self.ports = {name: _PORTS[name] for name in self.held}
            self.samplers = {"text": SamplerSpec(vocab=self.config.llm.vocab, temperature="temperature")}
        else:
            self.held = (alone,)
            self.ports = {alone: _APART_PORTS[alone]}

    def open(self, request: NodeRequest) -> Contexts:
        """Empty contexts."""
        return Contexts.begin(self.held, request.params)

    def pack(self, request: NodeRequest) -> dict[str, Any]:
        """The counters; which contexts are kept follows from the parameters."""
        state: Contexts = request.state
        return dict(state.positions)

    def unpack(self, request: NodeRequest, packed: Mapping[str, Any]) -> Contexts:
        """Go on there."""
        state = self.open(request)
        state.positions = dict(packed)
        return state

    def inputs(self, call: Call) -> Mapping[str, Any]:
        """A text begins with bos."""
        if call.walk in ("decode", "think") and call.inputs["ids"] is None:
            return {**call.inputs, "ids": self._bos}
        return call.inputs

    def segments(self, call: Call) -> Sequence[Segment]:
        """What each walk does to the sequences."""
        match call.walk:
            case "decode":
                return [Segment(tokens=1)]
            case "think":
                begins = call.inputs["ids"] is None
                return [Segment(tokens=1, sequence=THINKING, fork=MAIN if begins else None)]
            case "image_gen":
                return self._painting(call)
        return self._reading(call)

    def forward(self, step: Step) -> Mapping[str, torch.Tensor | list[torch.Tensor]]:
        """The next id of each text, the velocities of each picture; nothing where something is only read."""
        if self.samplers and step.plan.last is None:  # one token a call, as a text is decoded
            hidden = self.model(self.model.embed(step.tokens("ids", per="segment")), step)
            return {"token": step.sample(self.model.logits(hidden), "text")}
        match step.calls[0].walk:
            case "image_gen" | "prefill_vae":
                return self._latents(step)
            case "prefill_vit" | "read_picture":
                pictures = [self._enclosed(call.inputs["rows"]) for call in step.calls]
                self.model(_repeated(pictures, _runs(step)), step)
            case _:
                self.model(self.model.embed(step.tokens("ids", per="segment")), step)
        return {}

    def finish(self, call: Call, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Of a text: whether the id ends it, and otherwise the id to show. Contexts that ran give velocities."""
        if "token" in row and call.walk in ("decode", "think"):
            ends = self.config.ids.ends(row["token"])
            return {"stop": ends, "said": None if ends else torch.tensor(row["token"])}
        state: Contexts = call.request.state
        if call.walk == "image_gen":
            ran = state.painting(guided=self._guided(call))
            return {port: None for name, port in self.ports.items() if name not in ran}
        state.settle(call.walk, 1 if _is_picture(call) else token_count(call.inputs["ids"]))
        return {"token": None}

    def _reading(self, call: Call) -> Sequence[Segment]:
        """Fork the contexts that are not to see what follows; append it to the others."""
        state: Contexts = call.request.state
        picture, tokens = _is_picture(call), self._tokens(call)
        reading = state.reading(call.walk)
        if not reading:
            return ()
        segments = [Segment(tokens=0, sequence=name, fork=MAIN) for name in state.leaving(call.walk)]
        if call.walk == "prefill_thought":
            segments.append(Segment(tokens=0, sequence=THINKING, truncate=0))
        for name in reading:
            if picture:
                places = np.full(tokens, state.positions[name])
                segments.append(Segment(tokens=tokens, sequence=name, mask="full", positions=places))
            else:
                segments.append(Segment(tokens=tokens, sequence=name))
        return segments

    def _painting(self, call: Call) -> Sequence[Segment]:
        state: Contexts = call.request.state
        tokens = self._tokens(call)
        return [
            Segment(
                tokens=tokens,
                sequence=name,
                mask="full",
                commit=False,
                positions=np.full(tokens, state.positions[name]),
            )
            for name in state.painting(guided=self._guided(call))
        ]

    def _guided(self, call: Call) -> bool:
        return guided(float(call.inputs["time"]), call.request.params)

    def _tokens(self, call: Call) -> int:
        """Tokens of one of the call's segments."""
        if not _is_picture(call):
            return token_count(call.inputs["ids"])
        return token_count(call.inputs[_picture_port(call)]) + _MARKERS

    def _latents(self, step: Step) -> Mapping[str, list[torch.Tensor]]:
        """Latents through both experts; velocities where a picture is being made."""
        runs = _runs(step)
        pictures = [self._enclosed(self._latent_rows(call)) for call in step.calls]
        lengths = [len(picture) for picture, times in zip(pictures, runs, strict=True) for _ in range(times)]
        hidden = self.model(_repeated(pictures, runs), step, self._marker_rows(lengths))
        if step.calls[0].walk == "prefill_vae":
            return {}
        velocities = self.model.latents.velocity(hidden).float().split(lengths)  # [tokens + 2, latent width] each
        return self._by_port(step, [each[1:-1] for each in velocities])

    def _by_port(self, step: Step, velocities: Sequence[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
        """One velocity per call and port, empty for contexts that did not run (`finish` leaves these out)."""
        nothing = velocities[0].new_empty(0)
        given = iter(velocities)
        found = [{part.segment.sequence: next(given) for part in parts} for parts in step.parts]
        return {port: [each.get(name, nothing) for each in found] for name, port in self.ports.items()}

    def _latent_rows(self, call: Call) -> torch.Tensor:
        """`[tokens, hidden]`; a picture that was given is at time 0."""
        latents = torch.as_tensor(call.inputs["latents"])
        if call.walk == "prefill_vae":
            rows, columns = (int(side) for side in call.inputs["grid"])
            return self.model.latents.rows(latents, torch.zeros(()), (rows, columns))
        params = call.request.params
        grid = self.config.grid(params["height"], params["width"])
        return self.model.latents.rows(latents, torch.as_tensor(call.inputs["time"]), grid)

    def _enclosed(self, rows: Any) -> torch.Tensor:
        return self.model.enclose(torch.as_tensor(rows).to(self.device), self._markers)

    def _marker_rows(self, lengths: Sequence[int]) -> torch.Tensor:
        """Which of a step's rows are markers, for pictures of these lengths with theirs, int64 [2 * pictures]."""
        ends = np.cumsum(lengths)
        return torch.from_numpy(np.stack([ends - lengths, ends - 1], axis=1).reshape(-1)).to(self.device)


def _is_picture(call: Call) -> bool:
    return call.walk in ("prefill_vae", "prefill_vit", "read_picture", "image_gen")


def _picture_port(call: Call) -> str:
    return "latents" if call.walk in ("prefill_vae", "image_gen") else "rows"


def _runs(step: Step) -> list[int]:
    """On how many contexts the step runs each call's tokens."""
    return [sum(part.tokens > 0 for part in parts) for parts in step.parts]


def _repeated(rows: Sequence[torch.Tensor], times: Sequence[int]) -> torch.Tensor:
    """Each call's rows as often as it has segments, one after the other, `[tokens, hidden]`."""
    return torch.cat([each for each, number in zip(rows, times, strict=True) for _ in range(number)])
