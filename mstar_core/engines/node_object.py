"""What the node objects of both engines of the core have in common: state of their own, per request."""

from __future__ import annotations

from typing import Any

from mstar_core.engines.base import NodeRequest
from mstar_core.errors import NodeFailed


class NodeObject:
    """The life of `NodeRequest.state`; all of it on the worker's loop thread.

    A node whose walks are placed in several groups runs a request on several workers, one after the other. Each of
    them opens and closes the request, and what the node keeps for it goes from one to the next by `pack` and `unpack`.
    """

    def open(self, request: NodeRequest) -> Any:
        """The node's own state for a request; becomes `request.state`."""
        return None

    def close(self, request: NodeRequest) -> None:
        """Free what the node made for a request. `request.state` is None when the state is on another worker."""

    def pack(self, request: NodeRequest) -> Any:
        """`request.state` in plain values, to be sent to another worker; afterwards the state here becomes None.

        Plain are None, bool, int, float, str, bytes, lists, and dicts with string keys.
        """
        if request.state is not None:
            raise self._must_pack()
        return None

    def unpack(self, request: NodeRequest, packed: Any) -> Any:
        """The state from what `pack` gave on another worker; becomes `request.state` in place of what is there: what
        `open` made, or None."""
        if packed is not None:
            raise self._must_pack()
        return None

    def _must_pack(self) -> NodeFailed:
        return NodeFailed(
            f"{type(self).__name__} keeps state of its own for each request; to be placed in two groups it must "
            "implement pack and unpack"
        )
