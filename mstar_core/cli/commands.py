"""The table of commands. A line is all that a new command needs here; its module is imported when it is called."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is (`package.module:attribute`, a `click.Command`), and what `mstar --help` says of it."""

    target: str
    summary: str


COMMANDS = {
    "check": Entry("mstar_core.cli.check:check", "Examine every plugin, each in a process of its own."),
    "graph": Entry("mstar_core.cli.graph:graph", "Draw a model's nodes, walks and streams."),
    "host": Entry("mstar_core.cli.host:run_host", "Run workers on this host for a server on another one."),
    "keys": Entry("mstar_core.cli.host:make_keys", "Make the keys that a server and its other hosts share."),
    "list-models": Entry("mstar_core.cli.list_models:list_models", "List the models that can be served."),
    "plugins": Entry("mstar_core.cli.plugins:plugins", "List the installed plugins, and what is wrong with them."),
    "run": Entry("mstar_core.cli.run:run", "Run one request in this process, without a server."),
    "serve": Entry("mstar_core.cli.serve:serve_models", "Serve models over HTTP."),
    "trace": Entry("mstar_core.cli.trace:trace_request", "Show the walks that a request would take."),
}
