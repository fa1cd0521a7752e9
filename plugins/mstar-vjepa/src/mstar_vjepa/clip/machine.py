"""The state machine of `vjepa2`: the walk of the request's task, and the end."""

from __future__ import annotations

from collections.abc import Mapping

from mstar_core.spec.machine import RequestView, Start, Transition, WalkEnded


class ClipMachine:
    """Walks are named after the tasks."""

    def start(self, request: RequestView) -> Transition:
        """The task's walk."""
        return Transition(state=None, start=(Start(request.params["task"]),))

    def advance(self, state: None, event: WalkEnded) -> Transition:
        """Nothing follows."""
        return Transition(state=None, end="stop")

    def demand(self, request: RequestView) -> Mapping[str, int]:
        """No cache."""
        return {}
