"""Ids of the thinker's vocabulary that are no text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEWLINE = "Ċ"
"""How byte-level vocabularies write the line feed (Radford et al., 2019, `bytes_to_unicode` of GPT-2)."""

_VISION_END = "<|vision_end|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """What encloses turns and media, stands for media, or opens and closes speech; roles and `newline` are words.

    `stops` are the ids that end a reply.
    """

    im_start: int
    im_end: int
    system: int
    user: int
    assistant: int
    newline: int
    audio_start: int
    audio_end: int
    audio: int
    vision_start: int
    vision_end: int
    image: int
    video: int
    tts_pad: int
    tts_bos: int
    tts_eos: int
    stops: tuple[int, ...]

    @property
    def visual(self) -> tuple[int, int]:
        """Ids that stand for rows of the vision encoder."""
        return (self.image, self.video)

    @property
    def media(self) -> tuple[int, int, int]:
        """Ids that stand for rows of an encoder."""
        return (self.audio, self.image, self.video)

    @classmethod
    def parse(cls, values: Mapping[str, Any], words: Mapping[str, int], stops: tuple[int, ...]) -> SpecialIds:
        """From `config.json` and the tokenizer's `words`; raises KeyError for what is missing.

        Without `stops` a reply ends with `im_end`.
        """
        thinker = values["thinker_config"]
        return cls(
            im_start=values["im_start_token_id"],
            im_end=values["im_end_token_id"],
            system=values["system_token_id"],
            user=values["user_token_id"],
            assistant=values["assistant_token_id"],
            newline=words[NEWLINE],
            audio_start=thinker["audio_start_token_id"],
            audio_end=thinker["audio_end_token_id"],
            audio=thinker["audio_token_id"],
            vision_start=thinker["vision_start_token_id"],
            vision_end=words[_VISION_END],
            image=thinker["image_token_id"],
            video=thinker["video_token_id"],
            tts_pad=values["tts_pad_token_id"],
            tts_bos=values["tts_bos_token_id"],
            tts_eos=values["tts_eos_token_id"],
            stops=stops or (values["im_end_token_id"],),
        )


def vocabulary(checkpoint: Path) -> dict[str, int]:
    """Every token of the tokenizer, as its files write it, with its id.

    Reads `tokenizer.json`, or, as the published checkpoint has them, `vocab.json` and the added tokens of
    `tokenizer_config.json`. Raises OSError, ValueError, KeyError or TypeError for files that are missing or of another
    kind.
    """
    whole = checkpoint / "tokenizer.json"
    if whole.is_file():
        values = json.loads(whole.read_text(encoding="utf-8"))
        return {**values["model"]["vocab"], **{token["content"]: token["id"] for token in values["added_tokens"]}}
    words: dict[str, int] = json.loads((checkpoint / "vocab.json").read_text(encoding="utf-8"))
    added = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))["added_tokens_decoder"]
    return {**words, **{token["content"]: int(id) for id, token in added.items()}}
