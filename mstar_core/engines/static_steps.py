"""Running steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.attention.base import AttentionBackend
from mstar_core.engines.base import EngineSettings
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
            if plan.samplers[name].features.penalty and sampler.spec.history is not None:
                step.remember(name, step.tokens(sampler.spec.history))
        return dict(self._node.forward(step))
