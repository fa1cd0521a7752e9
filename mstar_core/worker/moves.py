"""Moves: what a node holds for a request goes from one worker to another, page by page, when the node runs elsewhere.

The request's home knows where the node is. Before it lets another worker run it, it has the present holder hand over
what it holds; runs on the new worker wait until all of it has arrived. Nothing is copied back: the pages have moved.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import torch

from mstar_core.engines.base import Handover
from mstar_core.errors import NodeFailed, RequestError
from mstar_core.wire.messages import Address, HandOver, TakeOver, TakeSlice
from mstar_core.wire.tensors import publish_tensor
from mstar_core.worker.models import Flight
from mstar_core.worker.post import Post
from mstar_core.worker.requests import RequestRun
from mstar_core.worker.values import taken
from mstar_core.worker.walks import Task

_log = logging.getLogger(__name__)

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
    """What has come and is coming of one node: the handover under way, whether it is complete before any run has asked
    for it, and the runs that wait. A node moves between two walks, so that there is one handover at a time."""

    coming: Handover | None = None
    rows_left: int = 0
    complete: bool = False
    waiting: list[Task] = field(default_factory=list)


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
            self._report(request, node, "hand the request over to another worker", error)
            return
        request.in_flight += 1
        self._submit(Departure(engine, batch, request=request, node=node, to=to))

    def departed(self, departure: Departure) -> None:
        """The pages are on the host: send them."""
        request, node, to = departure.request, departure.node, departure.to
        request.in_flight -= 1
        if request.closing:
            return
        try:
            if departure.error is not None:
                raise departure.error
            held = departure.engine.left(departure.batch)
            state = msgspec.msgpack.encode(held.state)
        except Exception as error:  # isolation boundary: what an engine does, and a node packs
            self._report(request, node, "hand the request over to another worker", error)
            return
        tensors = {name: each for name, each in held.tensors.items() if each.numel()}
        shapes = {name: (_dtype_name(each), tuple(each.shape)) for name, each in held.tensors.items()}
        self._post.send(to, TakeOver(request.key, node, state, shapes))
        for name, tensor in tensors.items():
            step = max(SLICE_BYTES // tensor[:1].nbytes, 1)
            for first in range(0, tensor.shape[0], step):
                rows = publish_tensor(self._post.exchange, tensor[first : first + step], to)
                self._post.send(to, TakeSlice(request.key, node, name, first, rows))

    def run(self, task: Task, *, moving: bool) -> None:
        """Queue a task of a node now, or, when it is `moving` here, as soon as it has arrived.

        Other runs of the same walk may come meanwhile, from another of its branches: they wait as well.
        """
        arrivals = task.run.request.arrivals.setdefault(task.op.node, Arrivals())
        if arrivals.waiting or (moving and not arrivals.complete):
            arrivals.waiting.append(task)
            return
        if moving:
            arrivals.complete = False
        self._run(task)

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
            self._report(request, node, "take the request over from another worker", error)
            return
        arrivals.complete = not arrivals.waiting
        waiting, arrivals.waiting = arrivals.waiting, []
        for task in waiting:
            self._run(task)

    def _report(self, request: RequestRun, node: str, what: str, error: Exception) -> None:
        """A node could not do its part of a move: its request has failed."""
        if not isinstance(error, RequestError):
            problem = f"node {node!r} failed to {what}: {type(error).__name__}: {error}"
            _log.error(problem, exc_info=error, extra={"request": request.id})
            error = NodeFailed(problem)
        self._post.report(request, "", node, error)


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
