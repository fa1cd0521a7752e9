"""Handing a request's cache over: what one KV engine holds for it leaves, and enters another one exactly.

It is parking whose contents travel. Page by page they are what the first engine computed, so that the second goes on
bit for bit as the first would have. Pools may differ in size, but not in what a page is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_core.engines.attention.base import AttentionBackend
from mstar_core.engines.base import Handover, Leaving, NodeRequest
from mstar_core.engines.histories import Histories
from mstar_core.engines.kv_node import KVNode
from mstar_core.engines.page_work import PageWork
from mstar_core.engines.parking import Parked
from mstar_core.engines.residents import Residents
from mstar_core.errors import NodeFailed


class KVHandovers:
    """The way out of one KV engine, and the way in; used by the loop thread."""

    def __init__(
        self, node: KVNode, backend: AttentionBackend, residents: Residents, histories: Histories, work: PageWork
    ) -> None:
        self._node = node
        self._residents = residents
        self._histories = histories
        self._work = work
        self._page = {
            "page_tokens": backend.page_size,
            "layers": backend.layout.layers,
            "kv_heads": backend.layout.kv_heads,
            "head_dim": backend.layout.head_dim,
            "dtype": str(backend.pool.dtype).removeprefix("torch."),
        }

    def leave(self, request: NodeRequest) -> Leaving:
        """Free a request's pages at once, and queue the copying of what was on them behind all earlier work."""
        resident = self._residents.by_key[request.key]
        packed = self._node.pack(request)
        parked = self._residents.leave(resident)
        request.state = None
        handover = Handover({"layout": dict(self._page), "node": packed, **_plain(parked)})
        self._histories.save(resident, handover.tensors)

        def add_pages() -> None:
            if parked.contents is not None:
                handover.tensors["pages"] = parked.contents

        self._work.then(add_pages)
        return Leaving(handover, self._work.take())

    def enter(self, request: NodeRequest, handover: Handover) -> None:
        """Let a request hold what left elsewhere; pages are reserved for it with its next call."""
        resident = self._residents.by_key[request.key]
        self._check(handover.state["layout"])
        state = self._node.unpack(request, handover.state["node"])
        self._residents.enter(resident, _parked(handover))
        self._histories.load(resident, handover.tensors)
        request.state = state

    def _check(self, theirs: Mapping[str, Any]) -> None:
        differing = [
            f"{name} {theirs[name]} there and {ours} here" for name, ours in self._page.items() if theirs[name] != ours
        ]
        if differing:
            raise NodeFailed(
                f"the cache of another worker does not fit into this one: {', '.join(differing)}; give both groups of "
                "the node the same dtype and page size"
            )


def _plain(parked: Parked) -> dict[str, Any]:
    """The bookkeeping of parked sequences in plain values."""
    sequences = {
        name: [places, length, float(position)] for name, (places, length, position) in parked.sequences.items()
    }
    return {"pages": parked.pages, "sequences": sequences}


def _parked(handover: Handover) -> Parked:
    """What `_plain` and the pages came from."""
    state = handover.state
    sequences = {name: (places, length, position) for name, (places, length, position) in state["sequences"].items()}
    contents = handover.tensors.get("pages")
    assert state["pages"] == (0 if contents is None else contents.shape[0]), "pages were lost on the way"
    return Parked(sequences, state["pages"], contents)
