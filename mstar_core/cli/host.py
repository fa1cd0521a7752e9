"""`mstar host` and `mstar keys`: workers on other hosts."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import click

from mstar_core import log
from mstar_core.errors import ConfigurationError
from mstar_core.launch.host import Host
from mstar_core.wire.address import Keys


@click.command("host")
@click.option(
    "--listen",
    required=True,
    metavar="tcp://ADDRESS:PORT",
    help="Where the server reaches this host: the address of one interface, and a port (0: a free one).",
)
@click.option(
    "--keys",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file of 'mstar keys', which the server has too.",
)
@click.option("--log-format", type=click.Choice(log.LOG_FORMATS), default="text", show_default=True)
@click.option("--log-level", type=click.Choice(log.LOG_LEVELS), default="info", show_default=True)
def run_host(listen: str, keys: Path, log_format: str, log_level: str) -> None:
    """Run workers on this host for a server on another one, until SIGINT or SIGTERM.

    The server's placement names this host under `hosts`. It starts its workers here, and they end when it goes or has
    not been heard of for some seconds; then the next server may come. Plugins and checkpoints have to be installed here
    as they are there.

    \b
    Example:
      mstar host --listen tcp://10.0.0.2:7700 --keys cluster.key
    """
    log.configure(log_format, log_level)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    host = Host(listen, keys, log_format=log_format, log_level=log_level)
    click.echo(f"waiting for a server on {host.endpoint}")
    with suppress(KeyboardInterrupt):
        host.run()
    click.echo("stopped", err=True)


@click.command("keys")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def make_keys(file: Path) -> None:
    """Make the FILE of keys by which a server and its other hosts know each other.

    Whoever has it can use them and read what they send: copy it to each host, readable by its owner only.

    \b
    Example:
      mstar keys cluster.key
    """
    if file.exists():
        raise ConfigurationError(f"{file} exists; remove it first, or choose another name")
    try:
        Keys.generate().save(file)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {error.strerror}") from error
    click.echo(f"{file}: made; copy it to every host that takes part")
