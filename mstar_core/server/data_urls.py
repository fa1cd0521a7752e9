"""`data:` URLs (RFC 2397), in which media travel inside JSON."""

from __future__ import annotations

import base64

from mstar_core.errors import InvalidRequest
from mstar_core.server.parts import base64_bytes

SCHEME = "data:"


def data_url(body: bytes, media_type: str) -> str:
    """Bytes as a URL."""
    return f"{SCHEME}{media_type};base64,{base64.b64encode(body).decode()}"


def is_data_url(url: str) -> bool:
    """Whether the URL brings its data itself."""
    return url[: len(SCHEME)].lower() == SCHEME


def data_of(url: str, at: str) -> bytes:
    """The bytes in a data URL, which stands at the path `at`; its media type is ignored. Raises `InvalidRequest`."""
    head, comma, data = url[len(SCHEME) :].partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidRequest(f"{at!r} must be of the form data:image/png;base64,...", param=at)
    return base64_bytes(data, at)
