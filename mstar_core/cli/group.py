"""The group of commands: help without importing any of them, one pointed message for an error, an exit status."""

from __future__ import annotations

from collections.abc import Sequence

import click

import mstar_core
from mstar_core import env
from mstar_core._resolve import resolve
from mstar_core.cli.commands import COMMANDS
from mstar_core.cli.errors import exit_status
from mstar_core.cli.output import warn
from mstar_core.errors import nearest


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called. `mstar --help` reads the table only."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands' names."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now; None for an unknown one."""
        if cmd_name not in COMMANDS:
            return None
        command = resolve(COMMANDS[cmd_name].target, purpose=f"command {cmd_name!r}")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name; an unknown one is refused with the nearest."""
        if args[0] not in COMMANDS:
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in sorted(COMMANDS.items())])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of environment variables."""
        with formatter.section("Environment"):
            formatter.write_dl([(variable.name, variable.doc) for variable in env.VARIABLES])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(mstar_core.__version__, prog_name="mstar", message="%(prog)s %(version)s")
def mstar() -> None:
    """Serve composite multimodal models.

    \b
    Examples:
      mstar list-models            what can be served here
      mstar graph MODEL            how a model is composed
      mstar check                  whether every plugin is sound
      mstar COMMAND --help         more about one command
    """
    for warning in env.warnings():
        warn(warning)


def run(arguments: Sequence[str] | None) -> int:
    """Run the command that `arguments` name; returns the exit status."""
    try:
        status = mstar.main(
            args=None if arguments is None else list(arguments), prog_name="mstar", standalone_mode=False
        )
    except Exception as error:
        return exit_status(error)
    return status if isinstance(status, int) else 0
