"""Running steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.attention.base import AttentionBackend
from mstar_core.engines.base import Call, EngineSettings
from mstar_core.engines.kv_node import KVNode
from mstar_core.engines.residents import Entry
from mstar_core.engines.sampling import Sampler
from mstar_core.engines.step import Mark, Step, StepInputs, StepPlan


class StepRunner:
    """Runs the steps of one node."""

    def __init__(
        self,
        node: KVNode,
        backend: AttentionBackend,
        samplers: Mapping[str, Sampler],
        device: torch.device,
        settings: EngineSettings,
    ) -> None:
        self._node = node
        self._backend = backend
        self._samplers = samplers

    def padding(self, entries: Sequence[Entry]) -> int:
        """Rows to add to a step of these entries."""
        return 0

    def run(
        self, plan: StepPlan, inputs: StepInputs, entries: Sequence[Entry], padding: int, marks: list[Mark]
    ) -> dict[str, Any]:
        """The step's outputs."""
        self._backend.begin(plan.attention)
        calls, parts = [entry.call for entry in entries], [entry.parts for entry in entries]
        step = Step(plan, inputs, self._backend, self._samplers, calls, parts, marks)
        for name, sampler in self._samplers.items():
            port = sampler.spec.history
            if port is not None and plan.samplers[name].features.penalty and _all_bring(calls, port):
                step.remember(name, step.tokens(port))
        return dict(self._node.forward(step))


def _all_bring(calls: Sequence[Call], port: str) -> bool:
    """Whether the calls are connected at a port (those of one walk all are, or none is)."""
    return all(call.inputs.get(port) is not None for call in calls)
