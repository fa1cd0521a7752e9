"""What a worker sends: to the Conductor how walks end, to frontends what is emitted, to other workers items and runs.

What many requests make in one turn of the loop for one receiver goes out in one message, at the turn's end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mstar_core.engines.base import Row
from mstar_core.errors import NodeFailed, RequestError
from mstar_core.wire.exchange import Exchange
from mstar_core.wire.mailbox import Mailbox
from mstar_core.wire.messages import (
    Address,
    Emitted,
    ErrorInfo,
    Message,
    Output,
    StreamCredit,
    StreamItem,
    StreamItems,
    WalkFailed,
)
from mstar_core.worker.requests import RequestRun
from mstar_core.worker.values import pack_item

_log = logging.getLogger(__name__)


class Post:
    """One worker's way to everyone else."""

    def __init__(self, mailbox: Mailbox, exchange: Exchange, conductor: Address) -> None:
        self.address = mailbox.address
        self.conductor = conductor
        self.exchange = exchange
        self._mailbox = mailbox
        self._emitted: dict[Address, list[Output]] = {}
        self._items: dict[Address, list[StreamItem]] = {}

    def send(self, receiver: Address, message: Message) -> None:
        """Send a message after everything else that was handed over for that receiver."""
        if receiver in self._items:
            self._mailbox.send(receiver, StreamItems(self._items.pop(receiver)))
        self._mailbox.send(receiver, message)

    def tell(self, message: Message) -> None:
        """Send a message to the Conductor."""
        self._mailbox.send(self.conductor, message)

    def report(self, request: RequestRun, walk: str, node: str, error: Exception) -> None:
        """Tell the Conductor that a request has failed; `walk` is "" when the node failed to take the request in."""
        if not isinstance(error, RequestError):
            where = f"node {node!r} failed in walk {walk!r}" if walk else f"node {node!r} failed to take the request in"
            _log.error(where, exc_info=error, extra={"request": request.id})
            error = NodeFailed(f"{where}: {type(error).__name__}: {error}")
        self.tell(WalkFailed(request.key, walk, node, ErrorInfo.of(error)))

    def emit(self, request: RequestRun, modality: str, value: Any) -> None:
        """Hand an output to its frontend at the end of this turn. Raises what a value raises that is no tensor."""
        array = _as_array(value)
        if request.frontend.near.startswith("inproc:"):
            array = array.copy()  # passed on by reference, while the batch's memory may be used again
        ref = self.exchange.publish(array, request.frontend)
        self._emitted.setdefault(request.frontend, []).append(Output(request.ticket, modality, ref))

    def stream(self, key: int, edge: int, consumer: Address) -> Callable[[Any], None]:
        """What sends the items of a stream, and None for its end, to the consumer's worker."""

        def send(item: Any) -> None:
            ref = None if item is None else pack_item(item, consumer, self.exchange)
            self._items.setdefault(consumer, []).append(StreamItem(key, edge, ref))

        return send

    def creditor(self, key: int, edge: int, producer: Address) -> Callable[[int], None]:
        """What grants places in a stream to a producer on another worker."""
        return lambda places: self._mailbox.send(producer, StreamCredit(key, edge, places))

    def forget(self, receiver: Address) -> None:
        """Drop what this turn has made for a party that is gone."""
        self._emitted.pop(receiver, None)
        self._items.pop(receiver, None)

    def flush(self) -> None:
        """Send what this turn has made."""
        for frontend, outputs in self._emitted.items():
            self._mailbox.send(frontend, Emitted(self.address, outputs))
        for consumer, items in self._items.items():
            self._mailbox.send(consumer, StreamItems(items))
        self._emitted.clear()
        self._items.clear()


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    """A value as the frontend's numpy array; bfloat16 becomes float32, which numpy knows."""
    if isinstance(value, Row):
        value = value.tensor()
    if isinstance(value, torch.Tensor):
        value = value.detach()
        value = (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()
    return np.asarray(value)
