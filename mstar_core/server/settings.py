"""What a deployer sets of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass, field

from mstar_core.errors import ConfigurationError
from mstar_core.media.limits import DEFAULT_LIMITS, MediaLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of one HTTP server; impossible ones raise `ConfigurationError`.

    `port` 0 takes a free one. Without `api_keys` every route is open; with them, all but `/health/live` want one as
    `Authorization: Bearer KEY`. `max_body_bytes` bounds a whole request, `media` each picture and clip in it.
    `media_hosts` are the hosts that media are fetched from (see `remote`); by default none.
    `keepalive_s` is the longest silence in a stream of events: well below the 60 s after which common proxies give a
    connection up. `stall_s` is how long a client may leave untouched what its response has ready for it (more than
    64 KiB) before it is cut off: long enough for a stream that a listener pauses for a moment. `drain_s` is how long
    running requests may go on after the first SIGINT or SIGTERM: the 30 s that Kubernetes leaves between SIGTERM and
    SIGKILL, less a margin.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    max_body_bytes: int = 32 * 2**20
    media: MediaLimits = DEFAULT_LIMITS
    media_hosts: tuple[str, ...] = ()
    keepalive_s: float = 15.0
    stall_s: float = 60.0
    drain_s: int = 25

    def __post_init__(self) -> None:
        _require(0 <= self.port <= 65535, f"port must lie in 0..65535, got {self.port}")
        _require(self.max_body_bytes >= 1, f"max_body_bytes must be at least 1, got {self.max_body_bytes}")
        _require(self.keepalive_s > 0, f"keepalive_s must be greater than 0, got {self.keepalive_s}")
        _require(self.stall_s > 0, f"stall_s must be greater than 0, got {self.stall_s}")
        _require(self.drain_s >= 0, f"drain_s must be at least 0, got {self.drain_s}")
        for host in self.media_hosts:
            plain = host == host.lower().strip() and not set(host) & set("/@?# ") and bool(host)
            _require(plain, f"a host of media must be HOST or HOST:PORT in lower case, got {host!r}")
        for key in self.api_keys:
            usable = key.isascii() and key.isprintable() and key.strip() == key and bool(key)
            _require(usable, "an API key must be printable ASCII, not empty, without blanks at its ends")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigurationError(message)
