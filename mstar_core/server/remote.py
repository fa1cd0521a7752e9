"""Media that a request names by an address: from hosts that the deployer allows, and from nowhere else.

A host is allowed by its name, `HOST` (on the ports 80 and 443) or `HOST:PORT`. A name that leads to an address which is
not public is refused, and so is every redirect to where a request could not have pointed itself. An address that is
private is reached only where it is allowed as an address (`10.0.0.5`).
"""

from __future__ import annotations

import ipaddress
import socket
import time
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, urljoin, urlsplit

import httpx

from mstar_core.errors import InvalidRequest, TooLarge
from mstar_core.server.body import shown
from mstar_core.server.data_urls import data_of, is_data_url

_REDIRECTS = 3
"""How many are followed."""

_PORTS = {"http": 80, "https": 443}


@dataclass(slots=True, kw_only=True)
class RemoteMedia:
    """Fetches one request's files from the allowed `hosts`: up to `max_bytes` each, all within `timeout_s` seconds.

    The address that was checked is the one that is connected to: a name that leads elsewhere by then has no effect.
    """

    hosts: tuple[str, ...]
    max_bytes: int
    timeout_s: float = 10.0
    _deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.timeout_s

    def read(self, url: str, at: str) -> bytes:
        """What a data URL holds, or the file at an address, which stand at the path `at`. Errors as `fetch`."""
        return data_of(url, at) if is_data_url(url) else self.fetch(url, at)

    def fetch(self, url: str, at: str) -> bytes:
        """The file at an http or https URL, which stands at the path `at`. Blocks: call it in a thread.

        Raises `InvalidRequest`, or `TooLarge` before more than the bound was taken.
        """
        with httpx.Client(timeout=self._left(at), trust_env=False) as client:
            for _ in range(1 + _REDIRECTS):
                with self._opened(client, url, at) as response:
                    if not response.has_redirect_location:
                        return self._body(response, at)
                    url = urljoin(url, response.headers["location"])
        raise InvalidRequest(f"{at!r}: more than {_REDIRECTS} redirects", param=at)

    def _opened(self, client: httpx.Client, url: str, at: str) -> _Response:
        parts = self._allowed(url, at)
        host = parts.hostname or ""
        address = self._address(host, parts.port or _PORTS[parts.scheme], at)
        request = client.build_request(
            "GET",
            httpx.URL(url).copy_with(host=address),
            headers={"host": parts.netloc.rpartition("@")[2], "accept-encoding": "identity"},
            extensions={"sni_hostname": host},
        )
        return _Response(client, request, at)

    def _allowed(self, url: str, at: str) -> SplitResult:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InvalidRequest(f"{at!r} is no valid URL: {shown(url)}", param=at) from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise InvalidRequest(f"{at!r} must be a data URL, or of http or https; got {shown(url)}", param=at)
        usual = port is None or port in _PORTS.values()
        if f"{parts.hostname}:{port}" not in self.hosts and not (usual and parts.hostname in self.hosts):
            hosts = f"only from {', '.join(self.hosts)}" if self.hosts else "from no address; send a data URL"
            raise InvalidRequest(f"{at!r}: this server fetches {hosts}; got {shown(url)}", param=at)
        return parts

    def _address(self, host: str, port: int, at: str) -> str:
        """Where the host is; its first address, when all of them are public."""
        if _is_address(host):
            return host  # allowed as it is
        try:
            found = [each[4][0] for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except OSError:
            raise InvalidRequest(f"{at!r}: the host {host!r} is not known", param=at) from None
        if not all(ipaddress.ip_address(str(address).partition("%")[0]).is_global for address in found):
            raise InvalidRequest(f"{at!r}: the host {host!r} has an address that is not public", param=at)
        return str(found[0])

    def _body(self, response: httpx.Response, at: str) -> bytes:
        if response.status_code != httpx.codes.OK:
            raise InvalidRequest(f"{at!r}: the address answered {response.status_code}", param=at)
        body = bytearray()
        for piece in response.iter_bytes(2**16):
            body += piece
            if len(body) > self.max_bytes:
                raise TooLarge(f"{at!r}: the file has more than the {self.max_bytes} bytes that are taken", param=at)
            self._left(at)
        return bytes(body)

    def _left(self, at: str) -> float:
        """How many seconds may still be waited; raises `InvalidRequest` when there are none."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise InvalidRequest(f"{at!r}: the file did not come within {self.timeout_s:g} s", param=at)
        return left


class _Response:
    """A response while it is read; what goes wrong with the connection is an error of the field `at`."""

    def __init__(self, client: httpx.Client, request: httpx.Request, at: str) -> None:
        self._client = client
        self._request = request
        self._at = at
        self._response: httpx.Response | None = None

    def __enter__(self) -> httpx.Response:
        try:
            self._response = self._client.send(self._request, stream=True)
        except httpx.HTTPError as error:
            raise self._failed(error) from None
        return self._response

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Literal[False]:
        if self._response is not None:
            self._response.close()
        if isinstance(error, httpx.HTTPError):
            raise self._failed(error) from None
        return False

    def _failed(self, error: httpx.HTTPError) -> InvalidRequest:
        return InvalidRequest(f"{self._at!r} cannot be fetched ({type(error).__name__})", param=self._at)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
