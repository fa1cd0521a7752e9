"""`mstar serve`."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

from mstar_core import env, log
from mstar_core.client.service import Service
from mstar_core.errors import nearest
from mstar_core.server.run import listen, serve
from mstar_core.server.settings import ServerSettings
from mstar_core.spec.placement import load_placement
from mstar_core.wire.messages import WorkerState

DEFAULTS = ServerSettings()

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("serve")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    metavar="[MODEL=]NAME|DIR|ID",
    help="A checkpoint on the model's card, a local directory, or a hub id; for one model, or for all.",
)
@click.option(
    "--placement",
    type=_FILE,
    help="A YAML file: which worker runs which node, and with how much memory. Default: everything on one worker.",
)
@click.option("--host", default=DEFAULTS.host, show_default=True, help="Address to listen on; 0.0.0.0 for every one.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULTS.port, show_default=True, help="0: a free one.")
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    help="A key that clients must send. Other users of this host can see it here; MSTAR_API_KEYS hides it from them.",
)
@click.option(
    "--allow-media-host",
    "media_hosts",
    multiple=True,
    metavar="HOST[:PORT]",
    help="A host from which pictures are fetched when a request names an address there. Default: none.",
)
@click.option("--keys", type=_FILE, help="The file of 'mstar keys', which the hosts of the placement have too.")
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the start of a worker may take.",
)
@click.option(
    "--in-process", is_flag=True, help="Run everything as threads of one process; a crash of a worker ends all of it."
)
@click.option(
    "--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write every request and batch to a file."
)
@click.option("--log-format", type=click.Choice(log.LOG_FORMATS), default="text", show_default=True)
@click.option("--log-level", type=click.Choice(log.LOG_LEVELS), default="info", show_default=True)
def serve_models(
    models: Sequence[str],
    checkpoints: Sequence[str],
    placement: Path | None,
    host: str,
    port: int,
    api_keys: Sequence[str],
    media_hosts: Sequence[str],
    keys: Path | None,
    start_timeout: float,
    in_process: bool,
    trace: Path | None,
    log_format: str,
    log_level: str,
) -> None:
    """Serve MODELs over HTTP until SIGINT or SIGTERM.

    Conductor and workers are processes of their own; one that ends is started again. The first signal lets running
    requests end, a second one cuts them off. A line on stdout says when requests are answered; everything else goes to
    stderr.

    \b
    Examples:
      mstar serve MODEL
      mstar serve MODEL --checkpoint tiny --port 0
      mstar serve MODEL --placement placement.yaml --trace trace.json
      mstar serve A B --checkpoint A=./fine-tuned --host 0.0.0.0
    """
    log.configure(log_format, log_level)
    settings = ServerSettings(
        host=host, port=port, api_keys=(*api_keys, *env.API_KEYS.get()), media_hosts=tuple(media_hosts)
    )
    chosen = by_model(models, checkpoints)
    listener = listen(settings)
    with (
        termination_unwinds(),
        listener,
        Service.start(
            models,
            checkpoints=chosen,
            placement=load_placement(placement) if placement else None,
            progress=lambda what: click.echo(f"{what} ...", err=True),
            processes=not in_process,
            trace=trace,
            keys=keys,
            start_timeout=start_timeout,
            log_format=log_format,
            log_level=log_level,
        ) as service,
    ):
        for line in worker_lines(service.workers):
            click.echo(line, err=True)
        serve(service, settings, listener, announce=click.echo)
    click.echo("stopped", err=True)


def by_model(models: Sequence[str], checkpoints: Sequence[str]) -> dict[str, str]:
    """The checkpoint of each model that the `--checkpoint` options name; raises `click.UsageError`."""
    chosen: dict[str, str] = {}
    for given in checkpoints:
        model, equals, checkpoint = given.partition("=")
        if equals and model not in models:
            raise click.UsageError(f"--checkpoint {given}: no model {model!r} is to be served{nearest(model, models)}")
        for name, value in {model: checkpoint}.items() if equals else dict.fromkeys(models, given).items():
            if name in chosen:
                raise click.UsageError(f"--checkpoint {given}: {name!r} has one already, {chosen[name]}")
            chosen[name] = value
    return chosen


def worker_lines(workers: Mapping[str, WorkerState]) -> Iterator[str]:
    """What each worker runs, on which device, and the memory that it has taken."""
    for name, worker in workers.items():
        nodes = "; ".join(f"{', '.join(nodes)} of {model}" for model, nodes in worker.nodes.items())
        memory = [f"{_mib(worker.device_bytes)} on {worker.device}"] if worker.device_bytes else []
        memory.append(f"{_mib(worker.host_bytes)} on the host")
        yield f"worker {name} ({worker.device}): {nodes}; {', '.join(memory)}"


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"


@contextmanager
def termination_unwinds() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does: by an exception, so that nothing is left behind."""

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
