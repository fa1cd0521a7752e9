"""A real HTTP server on a free port, in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mstar_core.client.service import Service
from mstar_core.server.app import create_app
from mstar_core.server.run import HttpServer, listen, url_of
from mstar_core.server.settings import ServerSettings


@contextmanager
def http_server(service: Service, settings: ServerSettings | None = None) -> Iterator[str]:
    """Serve `service` on loopback while the block runs; gives the server's URL.

    At the end running requests have the settings' `drain_s` to end. The caller closes the service.
    """
    settings = settings or ServerSettings(port=0, drain_s=5)
    listener = listen(settings)
    accepting = threading.Event()
    server = HttpServer(create_app(service, settings), settings, accepting.set)
    thread = threading.Thread(target=server.run, args=([listener],), name="http-server")
    thread.start()
    try:
        while not accepting.wait(0.1):
            assert thread.is_alive(), "the server's thread ended before it accepted connections"
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join()
