"""Channels: every party owns one mailbox; whoever knows its address can send to it.

A mailbox is a ZeroMQ PULL socket bound at its `near` endpoint, `inproc://` between threads or `ipc://` between
processes, and maybe at its `far` endpoint, `tcp://` between hosts, where only those who have the deployment's keys can
connect (CURVE) and everything is encrypted. Peers connect PUSH sockets. A send never blocks: what a slow peer's queue
does not take waits in this party's outbox and goes out when the socket is writable, so two peers that burst at each
other both finish. Messages to one peer keep their order.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import msgspec
import zmq

from mstar_core.errors import ConfigurationError
from mstar_core.wire.address import Keys, host_identity
from mstar_core.wire.gate import close_gate, open_gate
from mstar_core.wire.messages import Address, Message

_log = logging.getLogger(__name__)

_QUEUED_MESSAGES = 1000
"""ZeroMQ's high-water mark per socket: its own default, beyond which messages wait in the outbox."""

_RECEIVED_MESSAGES = 1000
"""How many messages a `receive` returns at most: a burst must not keep its party from its work."""

_LINGER_MS = 1000
"""How long what was sent before a close may wait for its party: one that is gone must not hold up the exit for ever."""

_RECONNECT_MS, _RECONNECT_MAX_MS = 20, 1000
"""A peer may be starting, so the first tries to connect come fast; one that stays away is tried once a second."""

_KEEPALIVE_S = (60, 10, 6)
"""TCP keepalive: first probe after a minute of silence, then one every 10 s; six unanswered ones end a connection."""

_COMPLAINT_S = 10.0
"""Frames that are no messages are logged at most this often."""

_IPC = "ipc://"
_EVERY_INTERFACE = ("*", "0.0.0.0", "[::]")

_WAKE = b""
"""An empty frame: no message, only a reason to return from `receive`."""

_Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
_Socket: TypeAlias = "zmq.Socket[bytes]"

_bells = itertools.count(1)
_encode: Callable[[Message], bytes] = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(Message).decode


class Mailbox:
    """One party's mailbox. All methods but `waker` belong to the thread that runs the party.

    `near` is an `inproc://` or `ipc://` endpoint, in a directory that only this user can enter; `far` a `tcp://`
    endpoint at an interface of this host (port 0 takes a free one), which needs `keys`. With keys a party can also
    send to other hosts. `host` is for tests: it makes this party one of another host.
    """

    def __init__(
        self, context: _Context, near: str, *, far: str = "", keys: Keys | None = None, host: str = ""
    ) -> None:
        assert not (far and near.startswith("inproc://")), "a party that others reach from afar has an ipc:// endpoint"
        self._context = context
        self._keys = keys
        self._gated = False
        self._socket_file: Path | None = None
        self._peers: dict[str, _Peer] = {}
        self._blocked: dict[_Socket, _Peer] = {}
        self._strangers = _Strangers()
        self._bell = _Bell(f"inproc://bell-{next(_bells)}")
        self._poller = zmq.Poller()
        self._inbox = context.socket(zmq.PULL)
        self._inbox.set(zmq.RCVHWM, _QUEUED_MESSAGES)
        self._patience = -1
        try:
            self._inbox.bind(self._bell.endpoint)
            self._inbox.bind(near)
            self._socket_file = Path(near.removeprefix(_IPC)) if near.startswith(_IPC) else None
            bound = self._listen_encrypted(far) if far else ""
        except BaseException:
            self.close()
            raise
        self.address = Address(host or host_identity(), near, bound)
        self._poller.register(self._inbox, zmq.POLLIN)

    @property
    def waiting(self) -> int:
        """Messages that their peers' queues had no room for yet."""
        return sum(len(peer.outbox) for peer in self._blocked.values())

    def send(self, address: Address, message: Message) -> None:
        """Queue a message for the party at `address`; never blocks."""
        frame, peer = _encode(message), self._peer(address)
        if peer.outbox:
            peer.outbox.append(frame)
        elif not _pushed(peer.socket, frame):
            peer.outbox.append(frame)
            self._blocked[peer.socket] = peer
            self._poller.register(peer.socket, zmq.POLLOUT)

    def receive(self, timeout: float | None) -> list[Message]:
        """The messages that have arrived, or the first of them if they are very many.

        Waits up to `timeout` seconds (None: for ever) for a first one or a wake-up; may return early without either.
        """
        patience = -1 if timeout is None else math.ceil(timeout * 1000)
        if self._blocked:
            if not self._wait_and_flush(patience):
                return []
            patience = 0
        return self._drain(patience)

    def waker(self) -> Waker:
        """A handle by which another thread wakes this party from `receive`, or sends it messages."""
        return Waker(self._context, self._bell)

    def disconnect(self, address: Address) -> None:
        """Drop what waits for a party that is gone for good."""
        peer = self._peers.pop(self._endpoint(address), None)
        if peer is None:
            return
        if self._blocked.pop(peer.socket, None):
            self._poller.unregister(peer.socket)
        peer.socket.close(linger=0)

    def close(self) -> None:
        """Close every socket; a second time is fine. What was sent is still delivered, if taken within seconds."""
        if self._inbox in self._poller:
            self._poller.unregister(self._inbox)
        self._inbox.close(linger=0)
        self._empty_outboxes()
        for peer in self._peers.values():
            peer.socket.close(linger=_LINGER_MS)
        self._peers.clear()
        self._blocked.clear()
        if self._socket_file:
            self._socket_file.unlink(missing_ok=True)  # ZeroMQ leaves it
            self._socket_file = None
        if self._gated:
            self._gated = False
            close_gate(self._context)

    def __enter__(self) -> Mailbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _listen_encrypted(self, endpoint: str) -> str:
        """Bind for holders of the keys only; the endpoint with its real port. Earlier endpoints stay as they are."""
        if self._keys is None:
            raise ConfigurationError(f"a mailbox at {endpoint} needs keys: messages between hosts are always encrypted")
        if endpoint.removeprefix("tcp://").rpartition(":")[0] in _EVERY_INTERFACE:
            raise ConfigurationError(f"peers cannot connect to {endpoint}: name the address of one interface")
        open_gate(self._context, self._keys.public)
        self._gated = True
        _encrypt(self._inbox, endpoint, self._keys)
        self._inbox.set(zmq.CURVE_SERVER, 1)
        self._inbox.set(zmq.ZAP_DOMAIN, self._keys.public.encode())
        self._inbox.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._inbox.bind(endpoint)
        return self._inbox.get_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def _endpoint(self, address: Address) -> str:
        return address.near if address.host == self.address.host else address.far

    def _peer(self, address: Address) -> _Peer:
        endpoint = self._endpoint(address)
        peer = self._peers.get(endpoint)
        if peer is None:
            assert endpoint, f"{address} is on another host and has no far endpoint"
            peer = self._peers[endpoint] = _Peer(_connected(self._context, endpoint, self._keys))
        return peer

    def _drain(self, patience: int) -> list[Message]:
        """What has arrived, or arrives within so many milliseconds."""
        if patience != self._patience:
            self._inbox.set(zmq.RCVTIMEO, patience)
            self._patience = patience
        messages: list[Message] = []
        try:
            self._read(self._inbox.recv(), messages)
            if self._inbox.get(zmq.EVENTS):  # to ask costs less than the exception at the end of a burst
                for _ in range(_RECEIVED_MESSAGES - 1):
                    self._read(self._inbox.recv(zmq.NOBLOCK), messages)
        except zmq.Again:  # nothing more is there
            pass
        return messages

    def _read(self, frame: bytes, messages: list[Message]) -> None:
        if frame == _WAKE:
            self._bell.rung = False
            return
        try:
            messages.append(_decode(frame))
        except msgspec.MsgspecError as error:
            self._strangers.complain(frame, error)

    def _wait_and_flush(self, patience: int) -> bool:
        """Wait until something has arrived, or a peer takes what waits for it; whether something has arrived."""
        arrived = False
        for socket, _ in self._poller.poll(patience):
            if socket is self._inbox:
                arrived = True
            else:
                self._flush(self._blocked[socket])
        return arrived

    def _empty_outboxes(self) -> None:
        """Wait a while for peers that have no room."""
        deadline = time.monotonic() + _LINGER_MS / 1000
        while self._blocked and (left := deadline - time.monotonic()) > 0:
            for socket, _ in self._poller.poll(math.ceil(left * 1000)):
                self._flush(self._blocked[socket])

    def _flush(self, peer: _Peer) -> None:
        while peer.outbox and _pushed(peer.socket, peer.outbox[0]):
            peer.outbox.popleft()
        if not peer.outbox:
            del self._blocked[peer.socket]
            self._poller.unregister(peer.socket)


class Waker:
    """Sends into one mailbox from any thread; never blocks. A mailbox that is closed takes nothing."""

    def __init__(self, context: _Context, bell: _Bell) -> None:
        self._bell = bell
        self._socket = _connected(context, bell.endpoint, None, queued=0)
        self._lock = threading.Lock()

    def wake(self) -> None:
        """Make the party return from `receive`."""
        with self._lock:
            if not self._bell.rung:
                self._bell.rung = True
                _pushed(self._socket, _WAKE)

    def send(self, message: Message) -> None:
        """Put a message into the mailbox."""
        with self._lock:
            _pushed(self._socket, _encode(message))

    def close(self) -> None:
        """Close the handle; what was sent is still delivered, unless the party is gone and takes nothing any more."""
        with self._lock:
            self._socket.close(linger=_LINGER_MS)


@dataclass(slots=True)
class _Bell:
    """Where a mailbox's wakers connect to. While it is `rung`, a wake-up is on its way that `receive` has not seen."""

    endpoint: str
    rung: bool = False


class _Peer:
    """The socket to one peer, and the frames that it had no room for."""

    __slots__ = ("outbox", "socket")

    def __init__(self, socket: _Socket) -> None:
        self.socket = socket
        self.outbox: deque[bytes] = deque()


class _Strangers:
    """Counts frames that are no messages, and logs them now and then."""

    def __init__(self) -> None:
        self._dropped = 0
        self._quiet_until = 0.0

    def complain(self, frame: bytes, error: Exception) -> None:
        self._dropped += 1
        now = time.monotonic()
        if now >= self._quiet_until:
            _log.warning("dropped %d frames that are no messages (%d bytes: %s)", self._dropped, len(frame), error)
            self._dropped, self._quiet_until = 0, now + _COMPLAINT_S


def _connected(context: _Context, endpoint: str, keys: Keys | None, queued: int = _QUEUED_MESSAGES) -> _Socket:
    """A socket to a peer, whose queue takes so many messages (0: any number)."""
    socket = context.socket(zmq.PUSH)
    socket.set(zmq.SNDHWM, queued)
    socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.set(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
    if endpoint.startswith("tcp://"):
        assert keys is not None, f"sending to {endpoint} needs the deployment's keys"
        _encrypt(socket, endpoint, keys)
        socket.set(zmq.CURVE_SERVERKEY, keys.public.encode())
    socket.connect(endpoint)
    return socket


def _encrypt(socket: _Socket, endpoint: str, keys: Keys) -> None:
    socket.set(zmq.IPV6, int("[" in endpoint))
    socket.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
    socket.set(zmq.CURVE_SECRETKEY, keys.secret.encode())
    idle, interval, count = _KEEPALIVE_S
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, idle)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, interval)
    socket.set(zmq.TCP_KEEPALIVE_CNT, count)


def _pushed(socket: _Socket, frame: bytes) -> bool:
    try:
        socket.send(frame, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True
