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
        ids = _special_ids(language_model / "tokenizer.json")
        try:
            snac = SnacConfig.read(codec_directory(checkpoint, weights=False))
        except (SnacConfigError, OSError) as error:
            raise CheckpointError(str(error)) from error
        config = cls(llama=llama, snac=snac, ids=ids)
        if config.audio_ids.stop > llama.vocab:
            raise CheckpointError(
                f"{checkpoint}: audio ids reach {config.audio_ids[-1]}, but the language model knows only {llama.vocab}"
                f" ids; codec (codebook of {snac.codebook_size}) and language model do not belong together"
            )
        return config

    @property
    def audio_ids(self) -> range:
        """The ids that carry codes."""
        return range(self.ids.audio, self.ids.audio + self.snac.ids_per_frame * self.snac.codebook_size)


def llm_directory(checkpoint: Path) -> Path:
    """Where the language model's files are: `llm/`, or the root. Raises `CheckpointError` when they are in neither."""
    inner = checkpoint / "llm"
    directory = inner if inner.is_dir() else checkpoint
    for name in ("config.json", "tokenizer.json"):
        if not (directory / name).is_file():
            found = ", ".join(sorted(path.name for path in directory.iterdir())) or "nothing"
            raise CheckpointError(
                f"{directory}: there is no {name}; an Orpheus checkpoint has config.json, tokenizer.json and "
                f"model*.safetensors at its root or in llm/ (found: {found})"
            )
    return directory


def codec_directory(checkpoint: Path, *, weights: bool = True) -> Path:
    """Where the codec's files are: `snac/` in the checkpoint, else the hub's."""
    inner = checkpoint / "snac"
    if inner.is_dir():
        return inner
    files = ("pytorch_model.bin",) if weights else ()
    try:
        return checkpoint_directory(CODEC_HUB_ID, model="orpheus", sources={}, extra_files=files, weights=weights)
    except CheckpointError as error:
        raise CheckpointError(
            f"{checkpoint} has no snac/, so the codec is taken from the hub. {error}. Or put config.json and "
            f"pytorch_model.bin of {CODEC_HUB_ID} into {inner}"
        ) from error


def _special_ids(path: Path) -> SpecialIds:
    try:
        added: Mapping[str, int] = {
            token["content"]: token["id"] for token in json.loads(path.read_text(encoding="utf-8"))["added_tokens"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read as a tokenizer: {error}") from error
    wanted = ("<|begin_of_text|>", "<|eot_id|>", "<custom_token_0>", f"<custom_token_{_FIRST_AUDIO}>")
    missing = [name for name in wanted if name not in added]
    if missing:
        raise CheckpointError(f"{path}: is no Orpheus tokenizer: among its added tokens is no {', no '.join(missing)}")
    ids = SpecialIds(begin_of_text=added[wanted[0]], end_of_turn=added[wanted[1]], custom=added[wanted[2]])
    if added[wanted[3]] != ids.audio:
        raise CheckpointError(
            f"{path}: {wanted[3]} has id {added[wanted[3]]}; {ids.audio}, by {wanted[2]}, was expected"
        )
    return ids
