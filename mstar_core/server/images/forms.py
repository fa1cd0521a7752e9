"""The form that OpenAI's clients send: fields of text, and pictures as `image`, or as several `image[]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mstar_core.client.service import ServedModel
from mstar_core.errors import InvalidRequest

_KINDS = {"n": "int", "output_compression": "int", "partial_images": "int", "stream": "bool"}
"""The route's own fields that are no texts."""

_TRUTHS = {"true": True, "false": False}


def split_form(form: Sequence[tuple[str, bytes]]) -> tuple[dict[str, str], list[tuple[str, bytes]]]:
    """The fields that are texts, and the pictures, each with the name to tell it by: `image.0`, `image.1`, ...

    Raises `InvalidRequest` for a text that is none, or that is given twice.
    """
    texts: dict[str, str] = {}
    pictures: list[tuple[str, bytes]] = []
    for name, value in form:
        if name in ("image", "image[]"):
            pictures.append((f"image.{len(pictures)}", value))
        elif name in texts:
            raise InvalidRequest(f"the form has two fields {name!r}", param=name)
        else:
            texts[name] = _text(name, value)
    return texts, pictures


def typed(texts: dict[str, str], model: ServedModel) -> dict[str, Any]:
    """Texts as the numbers and truth values that the fields want; what is none stays, and is refused by their rules."""
    kinds = _KINDS | {parameter.name: parameter.kind for parameter in model.parameters}
    return {name: _typed(text, kinds.get(name, "str")) for name, text in texts.items()}


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        problem = f"the field {name!r} of the form must be text in UTF-8; pictures are sent as 'image' or 'image[]'"
        raise InvalidRequest(problem, param=name) from None


def _typed(text: str, kind: str) -> Any:
    if kind == "bool":
        return _TRUTHS.get(text, text)
    try:
        return int(text) if kind == "int" else float(text) if kind == "float" else text
    except ValueError:
        return text
