"""`mstar run`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mstar_core.cli.inputs import input_arguments, request_content
from mstar_core.cli.output import json_option, print_json
from mstar_core.cli.requests import RequestCommand, request_registry, request_values
from mstar_core.client.engine import Engine, Result, finished
from mstar_core.client.files import modality_of, write_audio, write_tensors
from mstar_core.errors import ConfigurationError, InvalidRequest, MStarError
from mstar_core.spec.content import Audio, Content, Tensor

if TYPE_CHECKING:
    from rich.status import Status

    from mstar_core.client.ticket import Ticket
    from mstar_core.spec.model import ModelCard


@click.command("run", cls=RequestCommand)
@click.argument("model")
@input_arguments
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to write. The suffix says what: .wav .flac .mp3 .opus .ogg .aac .pcm, .txt, .safetensors. "
    "Default: text to stdout, sound to MODEL.wav, tensors to MODEL.safetensors.",
)
@click.option("--checkpoint", metavar="NAME|DIR|ID", help="A checkpoint on the model's card, a directory or a hub id.")
@click.option("--placement", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A placement file.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Fail when the request has not ended after so long. Default: the model's own deadline.",
)
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    model: str,
    inputs: tuple[str, ...],
    tensors: tuple[str, ...],
    output: Path | None,
    checkpoint: str | None,
    placement: Path | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Run one request through MODEL in this process, without a server.

    Every request parameter of the model is an option; `mstar run MODEL --help` lists them. An INPUT is a text, `-` for
    the text on stdin, or a file: a picture (.jpg .png .webp .gif), a clip (.mp4 .m4v .mov .webm .mkv .gif), a sound
    (.wav .flac .mp3 .opus .ogg .aac .m4a) or a text (.txt). The model gets INPUTs in their order, then the tensors.

    \b
    Examples:
      mstar run MODEL "Hello there." -o hello.wav
      mstar run MODEL "Hello there." -o hello.mp3 --seed 7 --checkpoint ./my-checkpoint
      mstar run MODEL clip.mp4 -o latents.safetensors
      mstar run MODEL frame.png --tensor states=robot.safetensors --tensor actions=plan.npy -o out.safetensors
      mstar run MODEL --help
    """
    from rich.console import Console

    registry = request_registry(ctx)
    wanted = _wanted(output, registry.card(model))
    content = request_content(inputs, tensors, registry.card(model))
    with (
        Console(stderr=True).status(f"starting {model}") as status,
        Engine(model, checkpoint=checkpoint, placement=placement, registry=registry, progress=status.update) as engine,
    ):
        status.update(f"running {model}")
        clock = _Clock(time.perf_counter())
        try:
            ticket = engine.submit(content, outputs=wanted, timeout=timeout, **request_values(ctx))
        except InvalidRequest as error:
            raise ConfigurationError(error.message) from error
        result = finished(ticket, _watched(ticket, clock, status))
    _report(_write(result, output, model), result, clock, as_json=as_json)


@dataclass(slots=True)
class _Clock:
    """When the request was sent, and seconds from then to its first content and to its end."""

    began: float
    first: float | None = None
    total: float = 0.0


def _wanted(output: Path | None, card: ModelCard) -> list[str] | None:
    """The modalities to ask for, settled before anything is loaded."""
    if output is None:
        return None
    modality = modality_of(output)
    if modality not in card.outputs:
        raise ConfigurationError(f"{output}: model {card.name!r} makes {', '.join(card.outputs)}, not {modality}")
    if not output.parent.is_dir():
        raise ConfigurationError(f"{output}: there is no directory {output.parent}")
    return [modality]


def _watched(ticket: Ticket, clock: _Clock, status: Status) -> Iterator[Content]:
    """The ticket's content, with progress on the way. An interruption cancels the request."""
    sound = 0.0
    try:
        for content in ticket:
            clock.first = clock.first or time.perf_counter() - clock.began
            if isinstance(content, Audio):
                sound += content.samples.size / content.rate
                status.update(f"{sound:.1f} s of audio")
            elif isinstance(content, Tensor) and content.step is not None:
                status.update(f"{content.name}: step {content.step + 1}")
            yield content
    finally:
        ticket.cancel()
        clock.total = time.perf_counter() - clock.began


def _write(result: Result, output: Path | None, model: str) -> dict[str, Path]:
    """Write files; the path by modality. Raises `MStarError` when there is nothing to write or it cannot be written."""
    modality = None if output is None else modality_of(output)
    chosen = {} if output is None or modality is None else {modality: output}
    if output is None and result.audio is not None:
        chosen["audio"] = Path(f"{model}.wav")
    if output is None and result.tensors:
        chosen["tensor"] = Path(f"{model}.safetensors")
    for kind, path in chosen.items():
        try:
            _write_one(kind, path, result)
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be written: {error.strerror or error}") from error
    return chosen


def _write_one(kind: str, path: Path, result: Result) -> None:
    if kind == "text":
        path.write_text(result.text, encoding="utf-8")
    elif kind == "tensor" and result.tensors:
        write_tensors(path, result.tensors)
    elif kind == "audio" and result.audio is not None:
        write_audio(path, result.audio)
    else:
        raise MStarError(f"{path}: not written: the request made no {kind} (it ended with {result.finish_reason!r})")


def _report(written: dict[str, Path], result: Result, clock: _Clock, *, as_json: bool) -> None:
    """Say what was made: text and the files' lines on stdout, what remains to be said on stderr."""
    summary = _summary(written, result, clock)
    if as_json:
        print_json(summary)
        return
    if result.text and "text" not in written:
        click.echo(result.text)
    ended = f"ended with {result.finish_reason!r} after {clock.total:.2f} s"
    about = {"text": "text", "audio": _about_audio(result, clock), "tensor": _about_tensors(result)}
    for kind, path in written.items():
        click.echo(f"{path}: {about[kind]}; {ended}")
    if not written:
        click.echo(ended, err=True)
    if result.images:
        click.echo(f"{len(result.images)} images were made and not written; mstar_core.Engine gives them", err=True)


def _summary(written: dict[str, Path], result: Result, clock: _Clock) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "written": {kind: str(path) for kind, path in written.items()},
        "finish_reason": result.finish_reason,
        "usage": dict(result.usage),
        "seconds": round(clock.total, 4),
        "first_content_seconds": None if clock.first is None else round(clock.first, 4),
    }
    if result.text:
        summary["text"] = result.text
    if result.audio is not None:
        length = result.audio.samples.size / result.audio.rate
        summary |= {"audio_seconds": round(length, 4), "rate": result.audio.rate}
        summary["real_time_factor"] = round(clock.total / length, 4) if length else None
    if tensors := result.tensors:
        summary["tensors"] = {
            name: {"dtype": str(array.dtype), "shape": list(array.shape)} for name, array in tensors.items()
        }
    return summary


def _about_audio(result: Result, clock: _Clock) -> str:
    if result.audio is None:
        return "no audio"
    length = result.audio.samples.size / result.audio.rate
    factor = f", real-time factor {clock.total / length:.2f}" if length else ""
    return f"{length:.2f} s of audio at {result.audio.rate} Hz{factor}"


def _about_tensors(result: Result) -> str:
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in result.tensors.items())
