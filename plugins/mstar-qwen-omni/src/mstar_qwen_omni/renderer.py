"""Ids and samples to text and sound, while they are made."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstar_core.spec.content import Audio, Content, Text
from mstar_qwen_omni.prompt import TextTokens

SAMPLE_RATE = 24000
"""Hz of the speech; no file of a checkpoint states it (Qwen3-Omni's model card)."""


class QwenOmniRenderer:
    """One request's text and speech. A character is shown once all its bytes are there."""

    def __init__(self, tokens: TextTokens) -> None:
        self._tokens = tokens
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def output(self, modality: str, value: NDArray[Any]) -> Content | None:
        """The text that ids, int64 of any shape, add to what came before; or new samples, float32 [n]."""
        if modality == "audio":
            return Audio(np.asarray(value, np.float32), SAMPLE_RATE)
        text = self._characters.decode(b"".join(self._tokens.bytes_of(int(id)) for id in value.flat))
        return Text(text) if text else None

    def finish(self) -> Sequence[Content]:
        """What stands for the bytes of a character that was never complete."""
        rest = self._characters.decode(b"", final=True)
        return (Text(rest),) if rest else ()

    def usage(self, tokens: Mapping[str, int]) -> Mapping[str, int]:
        """Tokens of the prompt, and those that the thinker wrote.

        Reading gives one, and so does each that is fed back; that which ends the reply is counted, too.
        """
        read = tokens.get("read", 0) + tokens.get("read_aloud", 0)
        return {"input_tokens": read, "output_tokens": tokens.get("write", 0) + (read > 0)}
