"""The node `talker`: the reply's tokens in, frames of codes out.

`listen` takes the first item of the stream, the rows of the user's turns, and reads them with the rows that open the
assistant's turn. In `talk` every run makes one frame: the decoder gives the first code, and the predictor the others
inside the same step. A run takes one token of the reply; after the last one the end is spoken once, then silence, until
the codec ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mstar_core.engines.base import Call, Chunk, NodeContext
from mstar_core.engines.kv_node import KVNode
from mstar_core.engines.sampling import SamplerSpec
from mstar_core.engines.segments import Segment
from mstar_core.engines.step import Step
from mstar_core.engines.values import tensor_of
from mstar_qwen_omni.config import DecoderConfig, QwenOmniConfig, TalkerConfig
from mstar_qwen_omni.speech.talker import AssistantRows, Talker

LISTEN = "listen"

_AXES = 3
"""Of rotary positions: time, height, width."""

_CONTROL_IDS = 1024
"""The last ids of the talker's vocabulary are no codes, and none but the end may be sampled (the reference's
`suppress_tokens`)."""


class TalkerNode(KVNode):
    """Prompts and frames never share a step, since they are walks of their own."""

    host_outputs = ("first",)
    run_ahead = ("feedback",)
    position_axes = _AXES
    position_dtype = torch.float32

    def __init__(self, context: NodeContext) -> None:
        config: QwenOmniConfig = context.config
        self.config: TalkerConfig = config.talker
        self._device = context.device
        self._dtype = context.dtype
        self.model = Talker.load(context.checkpoint, config.talker, device=context.device, dtype=context.dtype)
        with torch.inference_mode():
            self.rows = AssistantRows(context.checkpoint, config, self.model)
        self.kv = self.model.decoder.kv
        self.samplers = {
            "code": SamplerSpec(
                vocab=config.talker.decoder.vocab,
                temperature="talker_temperature",
                top_k="talker_top_k",
                top_p="talker_top_p",
                repetition_penalty="talker_repetition_penalty",
            ),
            "residual": SamplerSpec(
                vocab=config.talker.predictor.vocab,
                temperature="predictor_temperature",
                top_k="predictor_top_k",
                top_p="predictor_top_p",
                draws=config.talker.groups - 1,
            ),
        }
        self.masks = {"code": spoken_ids(config.talker.decoder, config.talker.codec.eos)}

    def segments(self, call: Call) -> Segment:
        """The user's rows and those that open the turn; else one token, also for a reply that is empty."""
        if call.walk != LISTEN:
            return Segment(tokens=1)
        positions = user_positions(np.asarray(call.inputs["positions"]), np.asarray(call.inputs["turns"]))
        opening = positions.max(initial=-1.0) + 1.0 + np.arange(self.rows.count, dtype=np.float32)
        placed = np.concatenate([positions, np.broadcast_to(opening, (_AXES, len(opening)))], axis=1)
        return Segment(tokens=placed.shape[1], positions=placed)

    def phases(self, call: Call) -> Mapping[str, int]:
        """Codes and the end."""
        return {"code": 0}

    def inputs(self, call: Call) -> Mapping[str, Any]:
        """In `talk`: the thinker's row that is spoken, and what is added to it."""
        if call.walk == LISTEN:
            return {}
        chunk: Chunk = call.inputs["text"]
        feedback = call.inputs.get("feedback")
        over = self.rows.eos if call.step == chunk.position else self.rows.pad
        text = self._item(chunk) if chunk.items else over
        return {"text": text, "feedback": self.rows.bos if feedback is None else feedback}

    def forward(self, step: Step) -> Mapping[str, torch.Tensor]:
        """Nothing for prompts; a frame per call else."""
        # A step that is replayed has no calls to ask, and is never a prompt's.
        if not step.plan.attention.static and step.calls[0].walk == LISTEN:
            self._listen(step)
            return {}
        x = self.model.text_projection(step.rows("text")[:, 0]) + step.rows("feedback")  # [rows, hidden]
        codes, feedback = self.model.frame(
            x,
            step,
            lambda logits: step.sample(logits, "code"),
            lambda logits, group: step.sample(logits, "residual", draw=group),
        )
        return {"first": codes[:, 0], "codes": codes, "feedback": feedback}

    def finish(self, call: Call, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Whether the speech has ended: by the codec, or since there is nothing to say."""
        if call.walk == LISTEN:
            return {}
        chunk: Chunk = call.inputs["text"]
        nothing = not chunk.items and chunk.position == call.step == 1
        if nothing or row["first"] == self.config.codec.eos:
            return {"stop": True, "codes": None}
        return {"stop": False}

    def _listen(self, step: Step) -> None:
        pieces = []
        for call, parts in zip(step.calls, step.parts, strict=True):
            prompt = self._prompt(call)
            pieces += [prompt[part.start : part.stop] for part in parts]
        self.model.decoder(torch.cat(pieces), step)

    def _prompt(self, call: Call) -> torch.Tensor:
        """All rows of a prompt, `[rows, hidden]`."""
        chunk: Chunk = call.inputs["text"]
        user = self.model.rows(self._item(chunk))
        return torch.cat([user, self.rows.opening[call.request.params["voice"]]])

    def _item(self, chunk: Chunk) -> torch.Tensor:
        """The thinker's rows, `[rows, width]`, which may have been computed elsewhere."""
        return tensor_of(chunk.items[0], self._device).to(self._dtype)


def user_positions(positions: npt.NDArray[np.float32], turns: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """The talker's positions `[3, rows]` of the user's turns, from the thinker's `[3, tokens]`.

    A turn begins one after the largest position of the turn before; within it they are as far apart as the thinker's.
    """
    pieces = [np.zeros((positions.shape[0], 0), np.float32)]
    begin = np.float32(0)
    for start, stop in turns:
        turn = positions[:, start:stop]
        pieces.append(turn - turn[:, :1] + begin)
        begin = pieces[-1].max() + 1
    return np.concatenate(pieces, axis=1)


def spoken_ids(config: DecoderConfig, eos: int) -> torch.Tensor:
    """The ids that may be sampled, bool [1, vocab]."""
    mask = torch.ones(1, config.vocab, dtype=torch.bool)
    mask[0, config.vocab - _CONTROL_IDS :] = False
    mask[0, eos] = True
    return mask
