"""`mstar run`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np

from mstar_core.cli.output import json_option, print_json
from mstar_core.cli.requests import describe_parameters, parse_parameters
from mstar_core.client.engine import Engine, Result
from mstar_core.errors import ConfigurationError, InvalidRequest, nearest
from mstar_core.media import AUDIO_FORMATS, encode_audio
from mstar_core.spec.content import Audio


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@click.argument("model")
@click.argument("text", required=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Where to; the suffix decides.")
@click.option("--checkpoint", metavar="NAME|DIR|ID", help="A checkpoint on the model's card, a directory or a hub id.")
@click.option("--placement", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A placement file.")
@click.option("--parameters", "list_parameters", is_flag=True, help="List the model's own options and leave.")
@json_option
def run(
    model: str,
    text: str | None,
    options: Sequence[str],
    output: Path | None,
    checkpoint: str | None,
    placement: Path | None,
    list_parameters: bool,
    as_json: bool,
) -> None:
    """Run one request through MODEL in this process, without a server.

    Every request parameter of the model is an option: `mstar run MODEL --parameters` lists them. Sound goes to a file
    whose suffix names the format (wav, flac, mp3, opus, aac, pcm), text to stdout.

    \b
    Examples:
      mstar run MODEL "Hello there." -o hello.wav
      mstar run MODEL "Hello there." -o hello.mp3 --seed 7 --checkpoint ./my-model
      mstar run MODEL --parameters
    """
    audio_format = _format_of(output)
    if text is None and not list_parameters:
        raise click.UsageError("say what to run: mstar run MODEL TEXT")
    with Engine(model, checkpoint=checkpoint, placement=placement, progress=_progress(as_json)) as engine:
        parameters = engine.service.models[model].parameters
        if list_parameters:
            click.echo(describe_parameters(parameters))
            return
        values = parse_parameters(parameters, options)
        started = time.perf_counter()
        try:
            result = engine.generate(text or "", **values)
        except InvalidRequest as error:
            raise ConfigurationError(error.message) from error
        _report(result, output or Path(f"{model}.wav"), audio_format, time.perf_counter() - started, as_json=as_json)


def _format_of(output: Path | None) -> str:
    """The audio format that a file name asks for; raises `click.UsageError` before anything is loaded."""
    if output is None:
        return "wav"
    suffixes = {each.suffix.removeprefix("."): name for name, each in AUDIO_FORMATS.items()} | {"ogg": "opus"}
    suffix = output.suffix.removeprefix(".").lower()
    if suffix not in suffixes:
        hint = nearest(suffix, suffixes)
        raise click.UsageError(f"{output}: no format for the suffix {suffix!r}{hint}; use {', '.join(suffixes)}")
    return suffixes[suffix]


def _progress(as_json: bool) -> Callable[[str], None]:
    def report(what: str) -> None:
        if not as_json and sys.stderr.isatty():
            click.echo(f"{what} ...", err=True)

    return report


def _report(result: Result, output: Path, audio_format: str, seconds: float, *, as_json: bool) -> None:
    """Write what there is, and say what was written."""
    summary: dict[str, object] = {"finish_reason": result.finish_reason, "usage": dict(result.usage)}
    if result.text:
        summary["text"] = result.text
        if not as_json:
            click.echo(result.text)
    if result.tensors:
        summary["tensors"] = {name: _described(array) for name, array in result.tensors.items()}
    if result.audio is not None:
        summary |= _write_audio(result.audio, output, audio_format)
    summary["seconds"] = round(seconds, 3)
    if as_json:
        print_json(summary)
    elif result.audio is not None:
        factor = seconds / max(result.audio.samples.size / result.audio.rate, 1e-9)
        click.echo(
            f"{output}: {summary['audio_seconds']} s of sound in {seconds:.2f} s (real-time factor {factor:.2f}), "
            f"ended by {result.finish_reason}"
        )
    else:
        click.echo(f"no sound, ended by {result.finish_reason}", err=True)


def _write_audio(audio: Audio, output: Path, audio_format: str) -> dict[str, object]:
    try:
        output.write_bytes(encode_audio(audio.samples, audio_format, audio.rate))
    except OSError as error:
        raise ConfigurationError(f"{output}: cannot be written: {error.strerror}") from error
    return {"output": str(output), "audio_seconds": round(audio.samples.size / audio.rate, 3), "rate": audio.rate}


def _described(array: np.ndarray) -> dict[str, object]:
    return {"dtype": str(array.dtype), "shape": list(array.shape)}
