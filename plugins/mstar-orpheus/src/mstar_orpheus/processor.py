"""Text to prompts, emitted samples to audio. Runs in the frontend; needs `tokenizers`, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mstar_core.errors import CheckpointError, InvalidRequest
from mstar_core.spec.content import Audio, Content, Prepared, Text
from mstar_orpheus.config import OrpheusConfig, llm_directory
from mstar_orpheus.text import segments, speakable


class OrpheusProcessor:
    """One prompt for each segment of the text, in the layout that the model was trained on:

    start_of_human, begin_of_text, "{voice}: {text}", end_of_turn, end_of_human, start_of_ai, start_of_speech.
    """

    def __init__(self, config: OrpheusConfig, checkpoint: Path) -> None:
        self._config = config
        self._tokenizer = read_text_tokenizer(llm_directory(checkpoint) / "tokenizer.json")

    def prepare(self, content: Sequence[Content], params: Mapping[str, Any]) -> Prepared:
        """Check the text, cut it into segments, and lay out their prompts, int64 [ids] each."""
        text = _only_text(content)
        spoken = [segment.strip() for segment in segments(text) if speakable(segment)]
        if not spoken:
            raise InvalidRequest("'input' holds nothing that can be spoken", param="input")
        prompts = [self.prompt(params["voice"], segment) for segment in spoken]
        self._check_room(max(len(prompt) for prompt in prompts), params["max_tokens"])
        return Prepared(inputs={"prompt": prompts}, params=params, outputs=frozenset({"audio"}))

    def render(self, prepared: Prepared) -> AudioRenderer:
        """A renderer for one request."""
        return AudioRenderer(self._config.snac.sampling_rate, len(prepared.inputs["prompt"]))

    def prompt(self, voice: str, text: str) -> NDArray[np.int64]:
        """The ids of one segment's prompt."""
        ids = self._config.ids
        said = self._tokenizer.encode(f"{voice}: {text}", add_special_tokens=False).ids
        return np.array(
            [
                ids.start_of_human,
                ids.begin_of_text,
                *said,
                ids.end_of_turn,
                ids.end_of_human,
                ids.start_of_ai,
                ids.start_of_speech,
            ],
            dtype=np.int64,
        )

    def _check_room(self, prompt: int, max_tokens: int) -> None:
        positions = self._config.llama.positions
        if prompt + max_tokens > positions:
            raise InvalidRequest(
                f"'max_tokens' of {max_tokens} and a prompt of {prompt} ids exceed the model's {positions} positions; "
                f"at most {positions - prompt} fit",
                param="max_tokens",
            )


def read_text_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a `tokenizer.json` without its added tokens, so that text gives text ids and nothing else.

    A client's "<|eot_id|>" or "<custom_token_3>" is thereby read aloud, whether or not the file calls them special.
    """
    values = json.loads(path.read_text(encoding="utf-8"))
    try:
        return Tokenizer.from_str(json.dumps(values | {"added_tokens": [], "post_processor": None}))
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{path}: cannot be read as a tokenizer: {error}") from error


class AudioRenderer:
    """Samples as they come."""

    def __init__(self, rate: int, prompts: int) -> None:
        self._rate = rate
        self._prompts = prompts

    def output(self, modality: str, value: NDArray[Any]) -> Content | None:
        """New samples, float32 [samples]."""
        return Audio(value, self._rate)

    def finish(self) -> Sequence[Content]:
        """Nothing is held back."""
        return ()

    def usage(self, tokens: Mapping[str, int]) -> Mapping[str, int]:
        """Prompt ids, and ids that were sampled (every prompt and every decode run gives one)."""
        sampled = tokens.get("decode", 0) + self._prompts
        read = tokens.get("prefill", 0)
        return {"input_tokens": read, "output_tokens": sampled}


def _only_text(content: Sequence[Content]) -> str:
    if len(content) != 1 or not isinstance(content[0], Text):
        raise InvalidRequest("'input' must be one text", param="input")
    text = content[0].text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"'input' holds half a character at position {error.start}", param="input") from error
    return text
