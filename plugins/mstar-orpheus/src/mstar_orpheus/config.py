"""The model's configuration, read from a checkpoint's JSON files. Torch-free.

A checkpoint is a directory with `llm/` and `snac/`, or a published Orpheus directory (Hugging Face Llama files at its
root); the latter finds its codec in a `snac/` beside them or, failing that, at the hub.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mstar_core.checkpoints import checkpoint_directory
from mstar_core.errors import CheckpointError
from mstar_core.nn.llama_config import LlamaConfig
from mstar_orpheus.codec.config import SnacConfig, SnacConfigError

CODEC_HUB_ID = "hubertsiuzdak/snac_24khz"
"""The codec that Orpheus was trained with (canopyai/Orpheus-TTS, `orpheus_tts/decoder.py`)."""

_FIRST_AUDIO = 10
"""`<custom_token_10>` is code 0 of slot 0 (the published tokenizer's layout)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids that a prompt and a reply consist of beside text; `custom` is `<custom_token_0>`, the base of most."""

    begin_of_text: int
    end_of_turn: int
    custom: int

    @property
    def start_of_speech(self) -> int:
        """The last id of the prompt."""
        return self.custom + 1

    @property
    def end_of_speech(self) -> int:
        """The stop id."""
        return self.custom + 2

    @property
    def start_of_human(self) -> int:
        """The first id of the prompt."""
        return self.custom + 3

    @property
    def end_of_human(self) -> int:
        """Closes the human turn."""
        return self.custom + 4

    @property
    def start_of_ai(self) -> int:
        """Opens the model's turn."""
        return self.custom + 5

    @property
    def audio(self) -> int:
        """The first audio id: audio ids are `audio + slot * codebook size + code`."""
        return self.custom + _FIRST_AUDIO


@dataclass(frozen=True, slots=True, kw_only=True)
class OrpheusConfig:
    """Language model, codec, and the ids that join them."""

    llama: LlamaConfig
    snac: SnacConfig
    ids: SpecialIds

    @classmethod
    def read(cls, checkpoint: Path) -> OrpheusConfig:
        """Read a checkpoint directory; raises `CheckpointError` that says what is missing or does not fit."""
        language_model = llm_directory(checkpoint)
        llama = LlamaConfig.read(language_model)
        try:
            snac = SnacConfig.read(codec_directory(checkpoint, weights=False))
        except (SnacConfigError, OSError) as error:
            raise CheckpointError(str(error)) from error
        ids = _special_ids(language_model / "tokenizer.json")
        last = ids.audio + snac.ids_per_frame * snac.codebook_size
        if last > llama.vocab:
            raise CheckpointError(
                f"{checkpoint}: audio ids reach {last - 1}, but the language model knows only {llama.vocab} ids; "
                f"codec (codebook of {snac.codebook_size}) and language model do not belong together"
            )
        return cls(llama=llama, snac=snac, ids=ids)


def llm_directory(checkpoint: Path) -> Path:
    """Where the language model's files are."""
    inner = checkpoint / "llm"
    return inner if inner.is_dir() else checkpoint


def codec_directory(checkpoint: Path, *, weights: bool = True) -> Path:
    """Where the codec's files are: `snac/` in the checkpoint, else the hub's."""
    inner = checkpoint / "snac"
    if inner.is_dir():
        return inner
    files = ("pytorch_model.bin",) if weights else ()
    return checkpoint_directory(CODEC_HUB_ID, model="orpheus (codec)", sources={}, extra_files=files, weights=weights)


def _special_ids(path: Path) -> SpecialIds:
    try:
        added: Mapping[str, int] = {
            token["content"]: token["id"] for token in json.loads(path.read_text(encoding="utf-8"))["added_tokens"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read as a tokenizer: {error}") from error
    wanted = ("<|begin_of_text|>", "<|eot_id|>", "<custom_token_0>")
    missing = [name for name in wanted if name not in added]
    if missing:
        raise CheckpointError(f"{path}: is no Orpheus tokenizer: it lacks {', '.join(missing)}")
    return SpecialIds(begin_of_text=added[wanted[0]], end_of_turn=added[wanted[1]], custom=added[wanted[2]])
