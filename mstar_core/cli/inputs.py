"""What commands take for a request: texts and files as arguments, tensors by option."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from mstar_core.client.files import INPUT_SUFFIXES, TENSOR_SUFFIXES, read_media, read_tensor
from mstar_core.errors import ConfigurationError
from mstar_core.spec.content import MODALITIES, Content, Text
from mstar_core.spec.model import ModelCard

C = TypeVar("C", bound="Callable[..., Any]")

_SHOWN = 40
"""How many characters of a wrong input an error repeats."""


def input_arguments(command: C) -> C:
    """Adds INPUT... and `--tensor` to a command, as the arguments `inputs` and `tensors`."""
    tensor = click.option(
        "--tensor",
        "tensors",
        multiple=True,
        metavar="NAME=FILE[:KEY]",
        help="A tensor from a .safetensors or .npy file. KEY: its name there, if that is not NAME.",
    )
    return click.argument("inputs", nargs=-1, metavar="[INPUT]...")(tensor(command))


def request_content(inputs: Sequence[str], tensors: Sequence[str], card: ModelCard) -> list[Content]:
    """The content of a request; raises `ConfigurationError` for a file that cannot be, `click.UsageError` for none."""
    if not inputs and not tensors:
        raise click.UsageError("Missing argument 'INPUT...': a text, - for stdin, or a file; or --tensor.")
    contents = [(given, _input(given)) for given in inputs] + [(given, _tensor(given)) for given in tensors]
    for given, content in contents:
        _require_modality(card, given, content)
    return [content for _, content in contents]


def _require_modality(card: ModelCard, given: str, content: Content) -> None:
    modality = MODALITIES[type(content)]
    if modality not in card.inputs:
        shown = given if len(given) <= _SHOWN else f"{given[: _SHOWN - 3]}..."
        hint = "; no file has that name" if isinstance(content, Text) and Path(given).suffix in INPUT_SUFFIXES else ""
        raise ConfigurationError(f"{shown}: model {card.name!r} takes {', '.join(card.inputs)}, not {modality}{hint}")


def _input(given: str) -> Content:
    """A text, or the content of the file that is named; `-` is the text on stdin."""
    if given == "-":
        return Text(sys.stdin.read())
    suffix = Path(given).suffix.lower()
    is_word = bool(suffix) and not any(character.isspace() for character in given)
    is_file = os.path.isfile(given)  # unlike Path's, never raises: a long text is the name of no file
    if suffix in TENSOR_SUFFIXES and (is_word or is_file):
        raise click.UsageError(f"{given}: tensors are given by name: --tensor NAME={given}")
    if suffix in INPUT_SUFFIXES and (is_word or is_file):
        return read_media(given)
    return read_media(given) if is_word and is_file else Text(given)


def _tensor(given: str) -> Content:
    name, _, rest = given.partition("=")
    if not name or not rest:
        raise click.UsageError(f"--tensor {given}: must be NAME=FILE or NAME=FILE:KEY")
    file, colon, key = rest.rpartition(":")
    if colon and not os.path.exists(rest):
        return read_tensor(name, file, key)
    return read_tensor(name, rest)
