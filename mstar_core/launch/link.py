"""The encrypted connection between a server and the hosts that run workers for it.

A host listens with a ROUTER socket, a server connects a DEALER. Only who has the deployment's key gets through (CURVE),
and nothing is sent that no connection is there for: what a peer that was away missed is old by the time it is back.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable

import msgspec
import zmq

from mstar_core.errors import ConfigurationError
from mstar_core.launch.host_messages import HostMessage
from mstar_core.wire.address import Keys
from mstar_core.wire.gate import close_gate, open_gate

_log = logging.getLogger(__name__)

_LINGER_MS = 1000
"""How long a last word may take to go out."""

_HANDSHAKE_MS = 5000
"""How long a peer may take to prove that it has the key."""

_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 1000, 5000
"""ZMTP's own heartbeats: they close a connection whose other end has vanished, so that another one is made."""

_encode: Callable[[HostMessage], bytes] = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], HostMessage] = msgspec.msgpack.Decoder(HostMessage).decode


class Link:
    """One end of the connection. All methods but `order` belong to the thread that loops over it.

    With `listens` it is bound at `endpoint`, which may name port 0, and hears many peers.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: Keys, *, listens: bool) -> None:
        self._context = context
        self._listens = listens
        self._socket = context.socket(zmq.ROUTER if listens else zmq.DEALER)
        self._secure(keys, endpoint)
        if listens:
            open_gate(context, keys.public)
            try:
                self._socket.bind(endpoint)
            except zmq.ZMQError as error:
                self._socket.close(linger=0)
                close_gate(context)
                raise ConfigurationError(f"cannot listen on {endpoint}: {error.strerror}") from error
        else:
            self._socket.set(zmq.IMMEDIATE, 1)
            self._socket.connect(endpoint)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._orders: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._bell, zmq.POLLIN)

    def send(self, message: HostMessage, peer: bytes = b"") -> bool:
        """Send a message, to one of several peers for an end that listens; whether there is a connection."""
        frames = [peer, _encode(message)] if self._listens else [_encode(message)]
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout: float) -> list[tuple[bytes, HostMessage]]:
        """Wait up to `timeout` seconds, do what was ordered, and return what has come, each with its peer."""
        self._poller.poll(math.ceil(timeout * 1000))
        for order in self._taken_orders():
            order()
        messages: list[tuple[bytes, HostMessage]] = []
        while True:
            try:
                *peer, frame = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append((b"".join(peer), _decode(frame)))
            except msgspec.MsgspecError as error:
                _log.warning("%s: %d bytes that are no message: %s", self.endpoint, len(frame), error)

    def order(self, order: Callable[[], None]) -> None:
        """Have the loop's thread do something, from any thread. Nothing is done once the link is closed."""
        with self._lock:
            if self._bell >= 0:
                self._orders.append(order)
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Close the connection, or all of them."""
        self._socket.close(linger=_LINGER_MS)
        if self._listens:
            close_gate(self._context)
        with self._lock:
            os.close(self._bell)
            self._bell = -1

    def _taken_orders(self) -> list[Callable[[], None]]:
        with self._lock:
            if self._orders:
                os.eventfd_read(self._bell)
            orders, self._orders = self._orders, []
        return orders

    def _secure(self, keys: Keys, endpoint: str) -> None:
        self._socket.set(zmq.IPV6, int("[" in endpoint))
        self._socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        self._socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        self._socket.set(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        self._socket.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
        self._socket.set(zmq.CURVE_SECRETKEY, keys.secret.encode())
        if self._listens:
            self._socket.set(zmq.CURVE_SERVER, 1)
            self._socket.set(zmq.ZAP_DOMAIN, keys.public.encode())
            self._socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        else:
            self._socket.set(zmq.CURVE_SERVERKEY, keys.public.encode())
