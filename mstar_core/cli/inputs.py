"""What commands take for a request: texts and files, in the order in which they are given, and tensors by option."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mstar_core.client.files import INPUT_SUFFIXES, TENSOR_SUFFIXES, read_media, read_tensor
from mstar_core.errors import ConfigurationError
from mstar_core.spec.content import MODALITIES, Content, Image, Text
from mstar_core.spec.model import ModelCard

if TYPE_CHECKING:
    from click.parser import _OptionParser

C = TypeVar("C", bound="Callable[..., Any]")

_SHOWN = 40
"""How many characters of a wrong input an error repeats."""


class Picture(str):
    """The path that an `--image` names, among the INPUTs."""


class PictureOption(click.Option):
    """An option whose values take their place among the arguments: what a model is shown and told keeps its order."""

    def add_to_parser(self, parser: _OptionParser, ctx: click.Context) -> None:
        """Have the parser put a value behind the arguments that came before it."""
        super().add_to_parser(parser, ctx)
        for name in self.opts:
            parser._long_opt[name].process = _among_arguments  # type: ignore[method-assign]


def _among_arguments(value: str, state: Any) -> None:
    state.largs.append(Picture(value))


def input_arguments(command: C) -> C:
    """Adds INPUT..., `--image` and `--tensor` to a command, as the arguments `inputs` and `tensors`."""
    picture = click.option(
        "--image", cls=PictureOption, metavar="FILE", expose_value=False, help="A picture; may stand between INPUTs."
    )
    tensor = click.option(
        "--tensor",
        "tensors",
        multiple=True,
        metavar="NAME=FILE[:KEY]",
        help="A tensor from a .safetensors or .npy file. KEY: its name there, if that is not NAME.",
    )
    inputs = click.argument("inputs", nargs=-1, metavar="[INPUT]...", type=click.UNPROCESSED)
    return inputs(picture(tensor(command)))


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
    if isinstance(given, Picture):
        return _picture(given)
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


def _picture(given: Picture) -> Content:
    content = read_media(given)
    if not isinstance(content, Image):
        raise click.UsageError(f"--image {given}: is no picture that stands still")
    return content


def _tensor(given: str) -> Content:
    name, _, rest = given.partition("=")
    if not name or not rest:
        raise click.UsageError(f"--tensor {given}: must be NAME=FILE or NAME=FILE:KEY")
    file, colon, key = rest.rpartition(":")
    if colon and not os.path.exists(rest):
        return read_tensor(name, file, key)
    return read_tensor(name, rest)
