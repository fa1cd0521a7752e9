"""Channels: every party owns one mailbox; whoever knows its endpoint can send to it.

A mailbox is a bound ZeroMQ PULL socket; peers connect PUSH sockets. The endpoint decides the shape of the deployment
(`inproc://` between threads, `ipc://` between processes, `tcp://` between hosts) and nothing else changes. A send
never blocks: what a slow peer's queue does not take waits in this party's outbox and goes out when the socket is
writable, so two peers that burst at each other both finish. Messages to one peer keep their order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

import msgspec
import zmq

from mstar_core.wire.messages import Message

_QUEUED_MESSAGES = 1000
"""ZeroMQ's high-water mark per socket: its own default, beyond which messages wait in the outbox."""

_LINGER_MS = 1000
"""How long what a closed waker sent may wait for its party: one that is gone must not hold up the exit for ever."""

_WAKE = b""
"""An empty frame: no message, only a reason to return from `receive`."""

_encode: Callable[[Message], bytes] = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(Message).decode


class Mailbox:
    """One party's mailbox. All methods but `waker` belong to the thread that runs the party."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.endpoint = endpoint
        self._context = context
        self._inbox = context.socket(zmq.PULL)
        self._inbox.set(zmq.RCVHWM, _QUEUED_MESSAGES)
        self._inbox.bind(endpoint)
        self._peers: dict[str, zmq.Socket[bytes]] = {}
        self._outbox: dict[str, deque[bytes]] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)

    def send(self, endpoint: str, message: Message) -> None:
        """Queue a message for the party at `endpoint`; never blocks."""
        frame = _encode(message)
        waiting = self._outbox.get(endpoint)
        if waiting:
            waiting.append(frame)
        elif not _pushed(self._peer(endpoint), frame):
            self._outbox[endpoint] = deque([frame])
            self._poller.register(self._peers[endpoint], zmq.POLLOUT)

    def receive(self, timeout: float | None) -> list[Message]:
        """All messages that have arrived.

        Waits up to `timeout` seconds (None: for ever) for a first one or a wake-up; may return early without either.
        """
        self._flush()
        messages: list[Message] = []
        if self._drain(messages) or timeout == 0:
            return messages
        self._poller.poll(None if timeout is None else int(timeout * 1000))
        self._flush()
        self._drain(messages)
        return messages

    def waker(self) -> Waker:
        """A handle by which another thread wakes this party from `receive`, or sends it messages."""
        return Waker(self._context, self.endpoint)

    def close(self) -> None:
        """Close every socket; what a peer has not taken yet is dropped."""
        for socket in (self._inbox, *self._peers.values()):
            socket.close(linger=0)

    def __enter__(self) -> Mailbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _peer(self, endpoint: str) -> zmq.Socket[bytes]:
        if endpoint not in self._peers:
            self._peers[endpoint] = _connected(self._context, endpoint)
        return self._peers[endpoint]

    def _drain(self, messages: list[Message]) -> bool:
        """Append what has arrived; whether anything did, wake-ups included."""
        arrived = False
        while True:
            try:
                frame = self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return arrived
            arrived = True
            if frame != _WAKE:
                messages.append(_decode(frame))

    def _flush(self) -> None:
        for endpoint, waiting in list(self._outbox.items()):
            socket = self._peers[endpoint]
            while waiting and _pushed(socket, waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._outbox[endpoint]
                self._poller.unregister(socket)


class Waker:
    """Sends into one mailbox from any thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = _connected(context, endpoint)
        self._lock = threading.Lock()

    def wake(self) -> None:
        """Make the party return from `receive`. A full inbox needs no wake-up."""
        with self._lock:
            _pushed(self._socket, _WAKE)

    def send(self, message: Message) -> None:
        """Put a message into the mailbox."""
        with self._lock:
            self._socket.send(_encode(message))

    def close(self) -> None:
        """Close the handle; what was sent is still delivered, unless the party is gone and takes nothing any more."""
        with self._lock:
            self._socket.close(linger=_LINGER_MS)


def _connected(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUSH)
    socket.set(zmq.SNDHWM, _QUEUED_MESSAGES)
    socket.connect(endpoint)
    return socket


def _pushed(socket: zmq.Socket[bytes], frame: bytes) -> bool:
    try:
        socket.send(frame, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True
