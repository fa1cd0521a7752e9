"""The HTTP server's life: it listens, says when it is ready, and drains on SIGINT or SIGTERM."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from mstar_core.client.service import Service
from mstar_core.errors import ConfigurationError
from mstar_core.server.app import create_app
from mstar_core.server.settings import ServerSettings

_logger = logging.getLogger(__name__)

_LOOPBACK = ("127.", "::1", "localhost")


def listen(settings: ServerSettings) -> socket.socket:
    """A socket bound to the host and port, so that a taken port is known before models are loaded.

    Nobody is answered yet: connections are refused until `serve`. Raises `ConfigurationError`.
    """
    where = f"{settings.host}:{settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigurationError(f"host {settings.host!r} has no address: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"{where} is in use: stop what listens there, or choose another port (0 takes a free one)"
            ) from None
        raise ConfigurationError(f"cannot listen on {where}: {error.strerror}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL under which a listener is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    service: Service,
    settings: ServerSettings,
    listener: socket.socket | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Answer requests, in the main thread, until SIGINT or SIGTERM; then return. The caller closes the service.

    `listener` is what `listen` gave, made here by default. `announce` gets one line when requests are answered. After
    the first signal no new request comes in and the running ones have `settings.drain_s` to end; after the second one
    they are cut off at once.
    """
    listener = listener or listen(settings)
    if not settings.api_keys and not settings.host.startswith(_LOOPBACK):
        _logger.warning("listening on %s without API keys: whoever reaches this host can use it", settings.host)
    models = ", ".join(service.models)
    server = HttpServer(create_app(service, settings), settings, lambda: announce(f"serving {models} on {url}"))
    url = url_of(listener)
    server.run([listener])


class HttpServer(uvicorn.Server):
    """uvicorn with M*'s ways of starting and stopping. `started_hook` is called once connections are accepted."""

    def __init__(self, app: FastAPI, settings: ServerSettings, started_hook: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,  # records go to the root logger, see `mstar_core.log`
            log_level="warning",
            access_log=False,  # `RequestBoundary` writes one
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=settings.drain_s,
        )
        super().__init__(config)
        self._started_hook = started_hook

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        await super().startup(sockets)
        self._started_hook()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; unlike uvicorn's, do not raise them again: the caller still has to clean up."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Python delivers signals to the main thread only; whoever started this one stops the server
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second cuts every connection, upon which requests are cancelled."""
        if self.should_exit:
            self.force_exit = True
            for connection in list(self.server_state.connections):
                connection.transport.abort()
        self.should_exit = True
