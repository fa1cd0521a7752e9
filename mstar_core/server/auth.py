"""API keys: every route but `/health/live` wants one of the server's, when it has any."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from mstar_core.server.errors import Unauthorized, error_response

_OPEN_PATHS = frozenset({"/health/live"})


class ApiKeys:
    """ASGI middleware that lets a request pass only with `Authorization: Bearer KEY` of a known key."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "lifespan" or scope["path"] in _OPEN_PATHS or self._admits(scope):
            await self._app(scope, receive, send)
            return
        problem = "this server wants an API key it knows: send 'Authorization: Bearer KEY'"
        await error_response(Unauthorized(problem))(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        # Every key is compared, each in constant time, so that the answer's delay tells nothing of them.
        matches = [hmac.compare_digest(key.strip(), known) for known in self._keys]
        return scheme.lower() == b"bearer" and any(matches)
