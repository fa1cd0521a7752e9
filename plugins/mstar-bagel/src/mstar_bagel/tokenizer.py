"""Text to ids and back, by the checkpoint's `tokenizer.json`. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from mstar_bagel.config import SpecialIds
from mstar_core.errors import CheckpointError


class BagelTokenizer:
    """Segments of text: `bos`, the text's ids, `eos`, and nothing else around them.

    What a client says gives text ids alone: its "<|im_end|>" is read as those ten characters. What the model said is
    read as the model meant it.
    """

    def __init__(self, checkpoint: Path, ids: SpecialIds) -> None:
        path = checkpoint / "tokenizer.json"
        self._ids = ids
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            self._whole = Tokenizer.from_str(json.dumps(values | {"post_processor": None}))
            self._plain = Tokenizer.from_str(json.dumps(values | {"post_processor": None, "added_tokens": []}))
        except Exception as error:  # the library raises nothing more precise
            raise CheckpointError(f"{path}: cannot be read as a tokenizer: {error}") from error

    def segment(self, text: str) -> list[int]:
        """The segment of a text that a client gave."""
        return self._enclosed(self._plain.encode(text, add_special_tokens=False).ids)

    def thought(self, said: Sequence[int]) -> list[int]:
        """The segment of what the model said: its text up to the first marker, tokenised again, as the reference
        reads it."""
        text = self._whole.decode(list(self.spoken(said)), skip_special_tokens=False)
        return self._enclosed(self._whole.encode(text, add_special_tokens=False).ids)

    def spoken(self, said: Iterable[int]) -> Iterable[int]:
        """The ids before the first one that ends a text."""
        return takewhile(lambda id: not self._ids.ends(id), said)

    def stream(self) -> TextStream:
        """A decoder for the ids of one text, as they come."""
        return TextStream(self._whole)

    def _enclosed(self, ids: Sequence[int]) -> list[int]:
        return [self._ids.bos, *ids, self._ids.eos]


class TextStream:
    """Ids to text, as soon as characters are whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=False)

    def text(self, id: int) -> str:
        """What is new in the text; empty while a character is cut in two."""
        return self._stream.step(self._tokenizer, id) or ""
