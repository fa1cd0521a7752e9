"""What a request emitted: ids to text as characters become whole, pictures as they are. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from mstar_bagel.config import BagelConfig
from mstar_bagel.tokenizer import BagelTokenizer
from mstar_core.spec.content import Content, Image, Prepared, Text

_THINKING = {"read_system": "think_to_answer", "prefill_system": "think_to_paint"}
"""The walks that read the prompts to think, and the inputs that hold them; a request takes one of them."""


class BagelRenderer:
    """One request's outputs, in the order in which they were emitted."""

    def __init__(self, config: BagelConfig, tokenizer: BagelTokenizer, prepared: Prepared) -> None:
        self._text = tokenizer.stream()
        self._read = sum(_tokens(config, each) for each in prepared.inputs["content"])
        self._prompts = {
            walk: len(prepared.inputs[name][0]) for walk, name in _THINKING.items() if name in prepared.inputs
        }
        self._painted = _latents(config, prepared.params["height"], prepared.params["width"])
        self._written = 0

    def output(self, modality: str, value: NDArray[Any]) -> Content | None:
        """An id int64 [], or a picture uint8 [height, width, 3]."""
        if modality == "image":
            self._written += self._painted
            return Image(value)
        self._written += 1
        text = self._text.text(int(value))
        return Text(text) if text else None

    def finish(self) -> Sequence[Content]:
        """Half a character at the end is not shown."""
        return ()

    def usage(self, tokens: Mapping[str, int]) -> Mapping[str, int]:
        """Ids of the texts and tokens of the pictures, each once: the contexts of guidance do not count."""
        prompt = sum(length for walk, length in self._prompts.items() if walk in tokens)
        return {"input_tokens": self._read + prompt, "output_tokens": self._written}


def _tokens(config: BagelConfig, item: NDArray[Any]) -> int:
    """Of a segment, or of a picture as the ViT sees it."""
    if item.ndim == 1:
        return len(item)
    return int(item.shape[0] * item.shape[1] // config.vit.patch**2)


def _latents(config: BagelConfig, height: int, width: int) -> int:
    rows, columns = config.grid(height, width)
    return rows * columns
