"""Text to ids and ids to bytes, by a checkpoint's tokenizer files. Needs `tokenizers`, no torch.

Ids of special tokens come from the configuration alone: what looks like one in a text is spelt out, never encoded as
one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from mstar_core.errors import CheckpointError

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizers cut text before they join bytes (transformers, `tokenization_qwen2`), for checkpoints that have
`vocab.json` and `merges.txt` and say nothing of it."""


class TextTokens:
    """A byte-level tokenizer. Made once per served model, in the frontend; raises `CheckpointError`."""

    def __init__(self, checkpoint: Path) -> None:
        whole = checkpoint / "tokenizer.json"
        try:
            if whole.is_file():
                values = json.loads(whole.read_text(encoding="utf-8"))
                added = {token["id"]: token for token in values["added_tokens"]}
                self._tokenizer, vocabulary = _plain(values), values["model"]["vocab"]
            else:
                vocabulary = json.loads((checkpoint / "vocab.json").read_text(encoding="utf-8"))
                self._tokenizer = _of_parts(vocabulary, (checkpoint / "merges.txt").read_text(encoding="utf-8"))
                named = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
                added = {int(id): token for id, token in named["added_tokens_decoder"].items()}
        except Exception as error:  # the library raises nothing more precise
            raise CheckpointError(f"{checkpoint}: the tokenizer cannot be read: {error}") from error
        self._bytes = _bytes_by_id(vocabulary, added)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, none of them special."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def bytes_of(self, id: int) -> bytes:
        """The bytes that an id stands for, which may be a part of a character; none for special and unknown ids."""
        return self._bytes.get(id, b"")


def _plain(values: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a `tokenizer.json` without its added tokens."""
    added = {token["content"] for token in values["added_tokens"]}
    model = values["model"]
    vocabulary = {word: id for word, id in model["vocab"].items() if word not in added}
    plain: dict[str, Any] = {"added_tokens": [], "post_processor": None, "model": {**model, "vocab": vocabulary}}
    return Tokenizer.from_str(json.dumps({**values, **plain}))


def _of_parts(vocabulary: Mapping[str, int], merges: str) -> Tokenizer:
    """The tokenizer of Qwen's `vocab.json` and `merges.txt`."""
    lines = (line for line in merges.splitlines() if line and not line.startswith("#version"))
    pairs = [(first, second) for first, second in (line.split(" ") for line in lines)]
    tokenizer = Tokenizer(models.BPE(dict(vocabulary), pairs))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def _bytes_by_id(vocabulary: Mapping[str, int], added: Mapping[int, Mapping[str, Any]]) -> dict[int, bytes]:
    letters = _byte_letters()
    table = {id: bytes(letters[letter] for letter in word) for word, id in vocabulary.items() if id not in added}
    return table | {id: token["content"].encode() for id, token in added.items() if not token["special"]}


def _byte_letters() -> dict[str, int]:
    """Which byte each letter of a byte-level vocabulary stands for (Radford et al., 2019, GPT-2's `bytes_to_unicode`).

    Bytes that print stand for themselves, the others for the letters from U+0100 on.
    """
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(hidden)}
