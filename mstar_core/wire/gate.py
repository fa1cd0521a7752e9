"""The gate of encrypted mailboxes: within one ZeroMQ context it answers who may connect (ZAP, RFC 27)."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import zmq
from zmq.auth.thread import ThreadAuthenticator

_lock = threading.Lock()
_gates: dict[zmq.Context[zmq.Socket[bytes]], _Gate] = {}
"""By context, since a context has one ZAP handler for all its sockets."""


@dataclass(slots=True)
class _Gate:
    authenticator: ThreadAuthenticator
    mailboxes: int = 0


class _OnlyTheDomainsKey:
    """Admits a client whose public key is the name of the domain that it knocks at."""

    def callback(self, domain: str, key: bytes) -> bool:
        return key.decode() == domain


def open_gate(context: zmq.Context[zmq.Socket[bytes]], public: str) -> None:
    """One more mailbox of this context needs the gate. Its ZAP domain is `public`, the key that is admitted."""
    with _lock:
        gate = _gates.get(context)
        if gate is None:
            gate = _gates[context] = _Gate(ThreadAuthenticator(context))
            gate.authenticator.start()
        gate.authenticator.configure_curve_callback(public, _OnlyTheDomainsKey())
        gate.mailboxes += 1


def close_gate(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """One mailbox of this context needs the gate no longer."""
    with _lock:
        gate = _gates[context]
        gate.mailboxes -= 1
        if not gate.mailboxes:
            del _gates[context]
            gate.authenticator.stop()
