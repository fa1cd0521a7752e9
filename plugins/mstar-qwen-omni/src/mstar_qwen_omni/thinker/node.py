"""The node `thinker`: reads prompts with their media, writes replies, and hands the talker what it is to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from mstar_core.engines.base import Call, NodeContext, NodeRequest
from mstar_core.engines.kv_node import KVNode, token_count
from mstar_core.engines.sampling import SamplerSpec
from mstar_core.engines.segments import Segment
from mstar_core.engines.step import Step
from mstar_core.engines.values import tensor_of
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.decoder import Deepstack
from mstar_qwen_omni.thinker.model import load_thinker
from mstar_qwen_omni.thinker.reading import Reading, media_places

_HOST = torch.device("cpu")


class Thinker(KVNode):
    """`hear` and `see` keep an encoder's rows; `read` and `read_aloud` read the whole prompt with them; `write` goes on
    from the last token. Reading and writing sample one token each.

    What is spoken goes to the talker: when the prompt was read aloud, the rows of the user's turns `[rows, 2 * hidden +
    1]`: the embedding, the state that the talker accepts, and 1 where the row is one of a sound or a picture. Then, of
    every token that is written on from, its embedding `[1, hidden]`. The last token of a reply is not, so that it is
    not spoken, as in the reference.
    """

    host_outputs = ("token",)
    run_ahead = ("token",)
    position_axes = 3
    position_dtype = torch.float32

    def __init__(self, context: NodeContext) -> None:
        self.config: QwenOmniConfig = context.config
        self.model = load_thinker(context)
        self.kv = self.model.decoder.kv
        self.device = context.device
        self.samplers = {
            "text": SamplerSpec(
                vocab=self.config.thinker.vocab,
                temperature="temperature",
                top_k="top_k",
                top_p="top_p",
                repetition_penalty="repetition_penalty",
                history="said",
            )
        }

    def open(self, request: NodeRequest) -> Reading:
        """Nothing was heard or seen yet."""
        return Reading()

    def pack(self, request: NodeRequest) -> dict[str, Any]:
        """Rows that are still to be read, and whether the reply is spoken."""
        state: Reading = request.state
        return state.pack()

    def unpack(self, request: NodeRequest, packed: Mapping[str, Any]) -> Reading:
        """Go on there."""
        return Reading.unpack(packed)

    def segments(self, call: Call) -> Segment | Sequence[Segment]:
        """The prompt at the positions that it brings, or the next token; rows of media are only kept."""
        state: Reading = call.request.state
        match call.walk:
            case "hear":
                state.sounds[call.step] = call.inputs["sound"]
                return ()
            case "see":
                state.sights[call.step] = (call.inputs["sight"], call.inputs["depth"])
                return ()
            case "write":
                return Segment(tokens=1)
        state.check(tensor_of(call.inputs["said"], _HOST), self.config.ids)
        state.aloud = call.inputs["user_turns"] is not None
        places = tensor_of(call.inputs["places"], _HOST).numpy()  # [3, tokens]
        return Segment(tokens=token_count(call.inputs["said"]), positions=places, next_position=float(places.max()) + 1)

    def forward(self, step: Step) -> Mapping[str, torch.Tensor | list[torch.Tensor]]:
        """The next token of each call, and what of it is spoken."""
        x = self.model.embed(step.tokens("said"))  # [tokens, hidden]
        if _writes(step):
            states = self.model.decoder(x, step)
            return {"token": step.sample(self.model.logits(states.final), "text"), "spoken": x[:, None]}
        pieces = _pieces(step)
        x, deepstack = self._with_media(x, pieces)
        accept = self.config.talker.accept_layer if step.calls[0].walk == "read_aloud" else None
        states = self.model.decoder(x, step, deepstack=deepstack, accept=accept)
        token = step.sample(self.model.logits(step.last(states.final)), "text")
        if states.accepted is None:
            return {"token": token}
        return {"token": token, "spoken": [self._turns(x, states.accepted, piece) for piece in pieces]}

    def finish(self, call: Call, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Whether the token ends the reply, and otherwise the token to show; nothing is spoken where nobody hears."""
        state: Reading = call.request.state
        if call.walk != "write":
            state.forget()
        ends = row["token"] in self.config.ids.stops
        decided = {"stop": ends, "shown": None if ends else torch.tensor(row["token"])}
        return decided if state.aloud else {**decided, "spoken": None}

    def _with_media(self, x: torch.Tensor, pieces: Sequence[Piece]) -> tuple[torch.Tensor, Deepstack | None]:
        """Rows of media in the place of their ids' embeddings, and the deepstack rows of what is seen."""
        places: list[torch.Tensor] = []
        deep: list[torch.Tensor] = []
        for piece in pieces:
            sounds, sights = media_places(piece.ids, self.config.ids)
            at, rows = piece.within(sounds)
            if len(at):
                x = x.index_copy(0, at.to(self.device), piece.state.sound_rows(self.device)[rows].to(x.dtype))
            at, rows = piece.within(sights)
            if len(at):
                seen, levels = piece.state.sight_rows(self.device)
                x = x.index_copy(0, at.to(self.device), seen[rows].to(x.dtype))
                places.append(at.to(self.device))
                deep.append(levels[:, rows].to(x.dtype))
        return x, Deepstack(torch.cat(places), torch.cat(deep, dim=1)) if places else None

    def _turns(self, x: torch.Tensor, accepted: torch.Tensor, piece: Piece) -> torch.Tensor:
        """The rows of the user's turns among a call's share of the step, `[rows, 2 * hidden + 1]`."""
        assert piece.turns is not None, "what is read aloud has turns"
        user = torch.zeros(len(piece.ids), dtype=torch.bool)
        for start, stop in piece.turns.tolist():
            user[start:stop] = True
        media = torch.logical_or(*media_places(piece.ids, self.config.ids))
        at, _ = piece.within(user)
        is_media = media[at - piece.offset + piece.start].to(self.device, x.dtype)  # [rows]
        at = at.to(self.device)
        return torch.cat([x[at], accepted[at], is_media[:, None]], dim=1)


@dataclass(frozen=True, slots=True)
class Piece:
    """One call's share of a step: tokens `start` to `stop` of its prompt, which lie at `offset` among the step's."""

    ids: torch.Tensor  # [tokens] int64: the whole prompt, on the host
    turns: torch.Tensor | None  # [turns, 2] int64, on the host
    state: Reading
    start: int
    stop: int
    offset: int

    def within(self, chosen: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """The chosen tokens, bool `[tokens]` of the prompt, that are in the step: their places in it, int64 [n], and
        their range among all chosen ones."""
        before = int(chosen[: self.start].sum())
        at = chosen[self.start : self.stop].nonzero().flatten() + self.offset
        return at, slice(before, before + len(at))


def _writes(step: Step) -> bool:
    """Whether the step is one of replies. Of a recorded step nothing but the plan is there; only replies are."""
    return step.plan.attention.static or step.calls[0].walk == "write"


def _pieces(step: Step) -> list[Piece]:
    offsets = [0, *accumulate(step.plan.counts)]
    return [
        Piece(
            ids=tensor_of(call.inputs["said"], _HOST),
            turns=None if call.inputs["user_turns"] is None else tensor_of(call.inputs["user_turns"], _HOST),
            state=call.request.state,
            start=parts[0].start,
            stop=parts[0].stop,
            offset=offset,
        )
        for call, parts, offset in zip(step.calls, step.parts, offsets[:-1], strict=True)
    ]
