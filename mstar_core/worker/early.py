"""Messages of other workers about requests that this worker does not know yet, or not any more.

Peers and the Conductor use different channels, so a peer's message may overtake the `Open` of its request. Keys grow
from request to request: one beyond all that were opened here is yet to come, others have been closed.
"""

from __future__ import annotations

from typing import Any

from mstar_core.wire.exchange import Exchange
from mstar_core.wire.messages import Fetched, NodeDone, RunNode, StreamItem, TakeSlice, TensorRef
from mstar_core.worker.values import tensors_in


class EarlyMessages:
    """Keeps what comes too early, and lets go of what comes too late."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._waiting: dict[int, list[Any]] = {}
        self._last = 0

    def keep(self, key: int, message: Any) -> None:
        """A message for a request that is not open, or closing."""
        if key > self._last:
            self._waiting.setdefault(key, []).append(message)
        else:
            self._let_go(message)

    def opened(self, key: int) -> list[Any]:
        """A request was opened: what came for it before."""
        self._last = key
        return self._waiting.pop(key, [])

    def is_late(self, key: int) -> bool:
        """Whether a request of that key is not to be opened any more: it is a dead Conductor's."""
        return key <= self._last

    def begin(self, first_key: int) -> None:
        """No request below that key will come any more."""
        self._last = max(self._last, first_key - 1)
        for key in [key for key in self._waiting if key < first_key]:
            for message in self._waiting.pop(key):
                self._let_go(message)
        for messages in self._waiting.values():
            for message in messages:
                self._let_go(message)
        self._waiting.clear()

    def _let_go(self, message: Any) -> None:
        for ref in _tensors_of(message):
            self._exchange.release(ref)


def _tensors_of(message: Any) -> list[TensorRef]:
    match message:
        case RunNode():
            return list(tensors_in(message.inputs))
        case NodeDone():
            return list(tensors_in(message.outputs))
        case StreamItem(item=ref) if ref is not None:
            return [ref]
        case TakeSlice():
            return [message.rows]
        case Fetched():
            return [ref for refs in message.inputs.values() for ref in refs]
    return []
