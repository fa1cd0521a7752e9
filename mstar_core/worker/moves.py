"""Moves: what a node holds for a request goes from one worker to another, page by page, when the node runs elsewhere.

The request's home knows where the node is. Before it lets another worker run it, it has the present holder hand over
what it holds; runs on the new worker wait until all of it has arrived. Nothing is copied back: the pages have moved.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import torch

from mstar_core.engines.base import Handover
from mstar_core.wire.messages import Address, HandOver, TakeOver, TakeSlice
from mstar_core.wire.tensors import publish_tensor
from mstar_core.worker.models import Flight
from mstar_core.worker.post import Post
from mstar_core.worker.requests import RequestRun
from mstar_core.worker.values import taken
from mstar_core.worker.walks import Task

SLICE_BYTES = 1 << 20
"""How much of a tensor travels in one message, at least one page: small enough that neither side ever holds a second
copy of a long context."""


@dataclass(slots=True)
class Departure(Flight):
    """A batch that takes a node's pages out; afterwards they go to `to`."""

    request: RequestRun = field(kw_only=True)
    node: str = field(kw_only=True)
    to: Address = field(kw_only=True)


@dataclass(slots=True, eq=False)
class Arrivals:
    """What has come and is coming of one node: the handover under way, those complete that no run has asked for yet,
    and the runs that wait."""

    coming: Handover | None = None
    rows_left: int = 0
    complete: int = 0
    waiting: deque[Task] = field(default_factory=deque)


class Moves:
    """The moves of one worker's requests. `submit` hands a batch to the device thread, `run` queues a task."""

    def __init__(self, post: Post, submit: Callable[[Flight], None], run: Callable[[Task], None]) -> None:
        self._post = post
        self._submit = submit
        self._run = run

    def bring(self, request: RequestRun, node: str, target: Address) -> bool:
        """Called at home before a node runs on `target`: whether what it holds is on its way there."""
        holder = request.located.setdefault(node, target)
        if holder == target:
            return False
        request.located[node] = target
        if holder == self._post.address:
            self.hand_over(request, node, target)
        else:
            self._post.send(holder, HandOver(request.key, node, target))
        return True

    def hand_over(self, request: RequestRun, node: str, to: Address) -> None:
        """Take a node's pages out of its engine, and send them when the device has copied them."""
        engine = request.model.engines[node]
        try:
            batch = engine.leave(request.nodes[node])
        except Exception as error:  # isolation boundary: a node's code
            self._post.report(request, "", node, error)
            return
        request.in_flight += 1
        self._submit(Departure(engine, batch, request=request, node=node, to=to))

    def departed(self, departure: Departure) -> None:
        """The pages are on the host: send them."""
        request, node, to = departure.request, departure.node, departure.to
        request.in_flight -= 1
        if request.closing:
            return
        if departure.error is not None:
            self._post.report(request, "", node, departure.error)
            return
        held = departure.engine.left(departure.batch)
        tensors = {name: (_dtype_name(each), tuple(each.shape)) for name, each in held.tensors.items()}
        state = msgspec.msgpack.encode(held.state)
        self._post.send(to, TakeOver(request.key, node, state, tensors))
        for name, tensor in held.tensors.items():
            step = max(SLICE_BYTES // max(tensor[:1].nbytes, 1), 1)
            for first in range(0, tensor.shape[0], step):
                rows = publish_tensor(self._post.exchange, tensor[first : first + step], to)
                self._post.send(to, TakeSlice(request.key, node, name, first, rows))

    def await_arrival(self, task: Task) -> None:
        """Queue a task of a node that is on its way, now or when it has arrived."""
        arrivals = task.run.request.arrivals.setdefault(task.op.node, Arrivals())
        if arrivals.complete:
            arrivals.complete -= 1
            self._run(task)
        else:
            arrivals.waiting.append(task)

    def take_over(self, request: RequestRun, message: TakeOver) -> None:
        """The first part of a handover."""
        arrivals = request.arrivals.setdefault(message.node, Arrivals())
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, (dtype, shape) in message.tensors.items()
        }
        arrivals.coming = Handover(msgspec.msgpack.decode(message.state), tensors)
        arrivals.rows_left = sum(shape[0] for _, shape in message.tensors.values() if math.prod(shape))
        self._enter_if_complete(request, message.node, arrivals)

    def take_slice(self, request: RequestRun, message: TakeSlice) -> None:
        """A later part."""
        arrivals = request.arrivals[message.node]
        assert arrivals.coming is not None, "slices follow their announcement"
        rows = taken(message.rows, self._post.exchange)
        arrivals.coming.tensors[message.name][message.first : message.first + rows.shape[0]] = rows
        arrivals.rows_left -= rows.shape[0]
        self._enter_if_complete(request, message.node, arrivals)

    def _enter_if_complete(self, request: RequestRun, node: str, arrivals: Arrivals) -> None:
        if arrivals.rows_left or arrivals.coming is None:
            return
        handover, arrivals.coming = arrivals.coming, None
        try:
            request.model.engines[node].enter(request.nodes[node], handover)
        except Exception as error:  # isolation boundary: a node's code
            self._post.report(request, "", node, error)
            return
        if arrivals.waiting:
            self._run(arrivals.waiting.popleft())
        else:
            arrivals.complete += 1


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
