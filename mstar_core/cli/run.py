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
from mstar_core.client.files import modality_of, write_audio, write_images, write_tensors
from mstar_core.errors import ConfigurationError, InvalidRequest, MStarError
from mstar_core.spec.content import Audio, Piece, Progress, Tensor

if TYPE_CHECKING:
    from mstar_core.cli.display import Display
    from mstar_core.client.ticket import Ticket
    from mstar_core.spec.model import ModelCard


@click.command("run", cls=RequestCommand)
@click.argument("model")
@input_arguments
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to write. The suffix says what: .wav .flac .mp3 .opus .ogg .aac .pcm, .png .jpg .webp, .txt, "
    ".safetensors; several pictures are numbered. Or a directory for all of it. Default: text to stdout, sound to "
    "MODEL.wav, pictures to MODEL.png, tensors to MODEL.safetensors.",
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
      mstar run MODEL "A red circle." -o circle.png --width 512 --height 512
      mstar run MODEL --image before.png "Make it blue." --image example.jpg "As here." -o after.webp
      mstar run MODEL clip.mp4 -o latents.safetensors
      mstar run MODEL frame.png --tensor states=robot.safetensors --tensor actions=plan.npy -o out.safetensors
      mstar run MODEL --help
    """
    from mstar_core.cli.display import Display

    registry = request_registry(ctx)
    wanted = _wanted(output, registry.card(model))
    content = request_content(inputs, tensors, registry.card(model))
    with (
        Display(f"starting {model}") as display,
        Engine(model, checkpoint=checkpoint, placement=placement, registry=registry, progress=display.say) as engine,
    ):
        display.say(f"running {model}")
        clock = _Clock(time.perf_counter())
        try:
            ticket = engine.submit(content, outputs=wanted, timeout=timeout, **request_values(ctx))
        except InvalidRequest as error:
            raise ConfigurationError(error.message) from error
        result = finished(ticket, _watched(ticket, clock, display), display.advance)
    _report(_write(result, output, model), result, clock, as_json=as_json)


@dataclass(slots=True)
class _Clock:
    """When the request was sent, and seconds from then to its first content and to its end."""

    began: float
    first: float | None = None
    total: float = 0.0


def _wanted(output: Path | None, card: ModelCard) -> list[str] | None:
    """The modalities to ask for, settled before anything is loaded."""
    if output is None or output.is_dir():
        return None
    modality = modality_of(output)
    if modality not in card.outputs:
        raise ConfigurationError(f"{output}: model {card.name!r} makes {', '.join(card.outputs)}, not {modality}")
    if not output.parent.is_dir():
        raise ConfigurationError(f"{output}: there is no directory {output.parent}")
    return [modality]


def _watched(ticket: Ticket, clock: _Clock, display: Display) -> Iterator[Piece]:
    """What the ticket gives, the display told of it. An interruption cancels the request."""
    sound = 0.0
    try:
        for content in ticket:
            if isinstance(content, Progress):
                yield content
                continue
            clock.first = clock.first or time.perf_counter() - clock.began
            if isinstance(content, Audio):
                sound += content.samples.size / content.rate
                display.say(f"{sound:.1f} s of audio")
            elif isinstance(content, Tensor) and content.step is not None:
                display.say(f"{content.name}: step {content.step + 1}")
            yield content
    finally:
        ticket.cancel()
        clock.total = time.perf_counter() - clock.began


def _write(result: Result, output: Path | None, model: str) -> dict[str, list[Path]]:
    """Write files; the paths by modality. Raises `MStarError` when there is nothing to write or that cannot be."""
    if output is None or output.is_dir():
        chosen = _by_default(result, (output or Path()) / model)
    else:
        chosen = {modality_of(output): output}
    written = {}
    for kind, path in chosen.items():
        try:
            written[kind] = _write_kind(kind, path, result)
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be written: {error.strerror or error}") from error
    return written


def _by_default(result: Result, stem: Path) -> dict[str, Path]:
    """Where each modality that was made goes, when no file is named; text is printed."""
    made = {
        "audio": (result.audio, ".wav"),
        "image": (result.images, ".png"),
        "tensor": (result.tensors, ".safetensors"),
    }
    return {kind: stem.with_name(stem.name + suffix) for kind, (what, suffix) in made.items() if what}


def _write_kind(kind: str, path: Path, result: Result) -> list[Path]:
    if kind == "image" and result.images:
        return write_images(path, result.images)
    if kind == "text":
        path.write_text(result.text, encoding="utf-8")
    elif kind == "tensor" and result.tensors:
        write_tensors(path, result.tensors)
    elif kind == "audio" and result.audio is not None:
        write_audio(path, result.audio)
    else:
        raise MStarError(f"{path}: not written: the request made no {kind} (it ended with {result.finish_reason!r})")
    return [path]


def _report(written: dict[str, list[Path]], result: Result, clock: _Clock, *, as_json: bool) -> None:
    """Say what was made: text and the files' lines on stdout, what remains to be said on stderr."""
    summary = _summary(written, result, clock)
    if as_json:
        print_json(summary)
        return
    if result.text and "text" not in written:
        click.echo(result.text)
    ended = f"ended with {result.finish_reason!r} after {clock.total:.2f} s"
    about = {
        "text": ["text"],
        "audio": [_about_audio(result, clock)],
        "image": [f"{image.pixels.shape[1]}x{image.pixels.shape[0]} pixels" for image in result.images],
        "tensor": [_about_tensors(result)],
    }
    for kind, paths in written.items():
        for path, what in zip(paths, about[kind], strict=True):
            click.echo(f"{path}: {what}; {ended}")
    if not written:
        click.echo(ended, err=True)


def _summary(written: dict[str, list[Path]], result: Result, clock: _Clock) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "written": {kind: _told(paths) for kind, paths in written.items()},
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
    if result.images:
        summary["images"] = [{"width": each.pixels.shape[1], "height": each.pixels.shape[0]} for each in result.images]
    if tensors := result.tensors:
        summary["tensors"] = {
            name: {"dtype": str(array.dtype), "shape": list(array.shape)} for name, array in tensors.items()
        }
    return summary


def _told(paths: list[Path]) -> str | list[str]:
    """The path; the paths of several pictures."""
    return str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]


def _about_audio(result: Result, clock: _Clock) -> str:
    if result.audio is None:
        return "no audio"
    length = result.audio.samples.size / result.audio.rate
    factor = f", real-time factor {clock.total / length:.2f}" if length else ""
    return f"{length:.2f} s of audio at {result.audio.rate} Hz{factor}"


def _about_tensors(result: Result) -> str:
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in result.tensors.items())
