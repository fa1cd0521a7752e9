"""Who speaks in the benchmark: transformers' own `generate`, and M* as it is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from mstar_qwen_omni import plugin
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.processor import QwenOmniProcessor
from mstar_qwen_omni.walks import nodes
from numpy.typing import NDArray
from omni_checkpoint import quiet

from mstar_core.client.engine import Engine
from mstar_core.spec.content import Audio, Text
from mstar_core.spec.placement import NodeGroup, Placement, WorkerPlace
from mstar_core.testing.plugins import registry_with

Floats = NDArray[np.float32]

MODEL = "qwen-omni"
GREEDY = {
    "temperature": 0.0,
    "talker_temperature": 0.0,
    "predictor_temperature": 0.0,
    "talker_repetition_penalty": 1.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How much each request says: tokens of the reply, frames of speech."""

    tokens: int
    frames: int

    def prompts(self, batch: int) -> list[str]:
        """The same texts for every peer and round."""
        return [f"Tell me something about ship number {number}, please." for number in range(batch)]


class Peer(Protocol):
    """Something that speaks."""

    name: str

    def speak(self, prompts: Sequence[str], job: Job) -> list[Floats]:
        """The samples of each reply."""


class TransformersPeer:
    """`Qwen3OmniMoeForConditionalGeneration.generate`, one request after the other."""

    name = "transformers"

    def __init__(self, directory: Path) -> None:
        from transformers import Qwen3OmniMoeForConditionalGeneration

        with quiet():
            self.model: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)
        self._processor = QwenOmniProcessor(QwenOmniConfig.read(directory), directory)

    def speak(self, prompts: Sequence[str], job: Job) -> list[Floats]:
        """The samples of each reply."""
        return [self._answer(prompt, job) for prompt in prompts]

    def _answer(self, prompt: str, job: Job) -> Floats:
        params = {"max_tokens": job.tokens, "audio_padding": "own", "use_audio_in_video": False, "fps": 1.0}
        ids = torch.as_tensor(self._processor.prepare([Text(prompt)], params).inputs["ids"][0])
        with torch.inference_mode(), quiet():
            _, samples = self.model.generate(
                ids[None],
                thinker_max_new_tokens=job.tokens,
                thinker_eos_token_id=self.model.config.im_end_token_id,
                thinker_do_sample=False,
                talker_do_sample=False,
                talker_repetition_penalty=1.0,
                talker_max_new_tokens=job.frames + 1,  # the last one is not heard
                return_audio=True,
                speaker="ethan",
            )
        result: Floats = samples.flatten().numpy()
        return result


class SystemPeer:
    """M* in one process; all requests are there at once. On a CPU steps are compiled unless it says otherwise."""

    def __init__(self, directory: Path, *, compiled: bool = True) -> None:
        self.name = "M*" if compiled else "M*, not compiled"
        names = tuple(node.name for node in nodes(QwenOmniConfig.read(directory)))
        placement = Placement(
            workers={"main": WorkerPlace(device="cpu", threads=1)},
            groups=(NodeGroup(nodes=names, worker="main", compile=compiled),),
        )
        self.engine = Engine(MODEL, checkpoint=directory, placement=placement, registry=registry_with(plugin))

    def speak(self, prompts: Sequence[str], job: Job) -> list[Floats]:
        """The samples of each reply."""
        tickets = [
            self.engine.submit(Text(prompt), max_tokens=job.tokens, max_audio_frames=job.frames, **GREEDY)  # type: ignore[arg-type]
            for prompt in prompts
        ]
        return [np.concatenate([each.samples for each in ticket if isinstance(each, Audio)]) for ticket in tickets]

    def close(self) -> None:
        """Stop it."""
        self.engine.close()
