"""Running steps: as they come, or padded to a bucket and replayed from fixed buffers.

A decode step that is replayed reads everything from tensors that stay where they are: its inputs, positions, sampler
rows and attention tables are copied into them, then the recorded work runs again. On CUDA what is recorded is a graph
of kernels, so that a step costs one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch

from mstar_core.engines.attention.base import AttentionBackend
from mstar_core.engines.base import Call
from mstar_core.engines.kv_node import KVNode
from mstar_core.engines.residents import Entry
from mstar_core.engines.sampling import Sampler
from mstar_core.engines.step import Mark, Per, Step, StepInputs, StepPlan

StepOutputs: TypeAlias = "dict[str, torch.Tensor | list[torch.Tensor]]"
Ask: TypeAlias = "tuple[str, Per | None]"
History: TypeAlias = "tuple[tuple[str, str], ...]"

_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class Capture(Protocol):
    """Records a function of fixed tensors, so that it can be run again."""

    def __call__(self, function: Callable[[], StepOutputs]) -> Callable[[], StepOutputs]:
        """What runs `function`'s work again and returns its outputs; it has run before, outside the recording."""


class CudaGraphs:
    """Records CUDA graphs that share one memory pool."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, function: Callable[[], StepOutputs]) -> Callable[[], StepOutputs]:
        """A replay of the kernels that `function` launches; its outputs are the same tensors each time."""
        graph = torch.cuda.CUDAGraph()
        # The loop thread goes on preparing steps meanwhile; only this thread's work belongs into the graph.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = function()
        self._pool = graph.pool()

        def replay() -> StepOutputs:
            graph.replay()
            return outputs

        return replay


def run_again(function: Callable[[], StepOutputs]) -> Callable[[], StepOutputs]:
    """The capture for devices without graphs: the function itself."""
    return function


@dataclass(slots=True)
class FixedInputs:
    """Input tensors that stay where they are, by port and kind (None: one per row)."""

    tensors: dict[Ask, torch.Tensor]

    def tokens(self, port: str, per: Per) -> torch.Tensor:
        """`[rows, ...]`."""
        return self.tensors[port, per]

    def rows(self, port: str) -> torch.Tensor:
        """`[rows, ...]`."""
        return self.tensors[port, None]


@dataclass(slots=True)
class PaddedInputs:
    """Inputs of a step with padding rows, which repeat the first row; `given` is what was asked for so far."""

    inner: StepInputs
    padding: int
    given: dict[Ask, torch.Tensor] = field(default_factory=dict)

    def tokens(self, port: str, per: Per) -> torch.Tensor:
        """`[rows, ...]`."""
        return self._padded((port, per), lambda: self.inner.tokens(port, per))

    def rows(self, port: str) -> torch.Tensor:
        """`[rows, ...]`."""
        return self._padded((port, None), lambda: self.inner.rows(port))

    def _padded(self, ask: Ask, values: Callable[[], torch.Tensor]) -> torch.Tensor:
        if ask not in self.given:
            real = values()
            self.given[ask] = torch.cat((real, real[:1].expand(self.padding, *real.shape[1:])))
        return self.given[ask]


class _NoCalls(Sequence[Any]):
    """Stands for `Step.calls` and `Step.parts` where a step is replayed for other calls."""

    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("a compiled step has no single calls; the node has to work on tensors, or leave compile off")

    def __len__(self) -> int:
        raise RuntimeError("a compiled step has no single calls; the node has to work on tensors, or leave compile off")


class Recorded:
    """One recorded step of a node: the tensors that it reads, and how to run it again."""

    def __init__(self, step: Step, inputs: FixedInputs, capture: Capture, work: Callable[[Step], StepOutputs]) -> None:
        self._step = step
        self._inputs = inputs

        def run() -> StepOutputs:
            step.marks.clear()
            return work(step)

        self._replay = capture(run)

    def run(self, plan: StepPlan, inputs: StepInputs, rows: int, marks: list[Mark]) -> StepOutputs | None:
        """Run it on another step of its shape.

        Gives copies of the outputs' first `rows` rows; None, and nothing has happened, where the inputs do not fit.
        """
        fixed = self._inputs.tensors
        fresh = {(port, per): inputs.rows(port) if per is None else inputs.tokens(port, per) for port, per in fixed}
        if any(each.shape[1:] != fixed[key].shape[1:] or each.dtype != fixed[key].dtype for key, each in fresh.items()):
            return None
        for key, each in fresh.items():
            fixed[key][:rows].copy_(each)
        self._step.plan.positions.copy_(plan.positions)
        for name, sampler_rows in self._step.plan.samplers.items():
            sampler_rows.copy_(plan.samplers[name])
        outputs = self._replay()
        marks += [mark.clone() for mark in self._step.marks]
        return {name: _first_rows(values, rows) for name, values in outputs.items()}


class StepRunner:
    """Runs the steps of one node; with a `capture`, decode steps from recordings.

    A step of a new shape runs directly, which loads its kernels. When the shape comes again it is recorded.
    """

    def __init__(
        self,
        node: KVNode,
        backend: AttentionBackend,
        samplers: Mapping[str, Sampler],
        capture: Capture | None = None,
    ) -> None:
        self._node = node
        self._backend = backend
        self._samplers = samplers
        self._capture = capture
        self._static_rows: set[int] = set()
        self._asked: dict[Hashable, tuple[Ask, ...]] = {}
        self.recorded: dict[Hashable, Recorded] = {}

    def padding(self, entries: Sequence[Entry]) -> int:
        """Rows to add to a step of these entries (loop thread, before it is planned)."""
        if self._capture is None or not all(_decodes(entry) for entry in entries):
            return 0
        rows = next((size for size in _BUCKETS if size >= len(entries)), None)
        if rows is None:
            return 0
        if rows not in self._static_rows:
            self._static_rows.add(rows)
            self._backend.make_static(rows, longest=self._backend.tokens)
        return rows - len(entries)

    def run(
        self, plan: StepPlan, inputs: StepInputs, entries: Sequence[Entry], padding: int, marks: list[Mark]
    ) -> StepOutputs:
        """The step's outputs; what it added to histories is added to `marks`."""
        self._backend.begin(plan.attention)
        history = self._history(plan, entries[0].call)
        if self._capture is None or not plan.attention.static:
            return self._direct(plan, inputs, entries, history, marks)
        key = self._key(plan, entries[0].call.walk, history)
        if key in self._asked:
            if key not in self.recorded:
                self.recorded[key] = self._record(self._capture, plan, PaddedInputs(inputs, padding), key, history)
            outputs = self.recorded[key].run(plan, inputs, len(entries), marks)
            if outputs is not None:
                return outputs
        padded = PaddedInputs(inputs, padding)
        outputs = self._direct(plan, padded, entries, history, marks)
        self._asked.setdefault(key, tuple(padded.given))
        return {name: values[: len(entries)] for name, values in outputs.items()}

    def _direct(
        self, plan: StepPlan, inputs: StepInputs, entries: Sequence[Entry], history: History, marks: list[Mark]
    ) -> StepOutputs:
        calls, parts = [entry.call for entry in entries], [entry.parts for entry in entries]
        return self._forward(Step(plan, inputs, self._backend, self._samplers, calls, parts, marks), history)

    def _record(
        self, capture: Capture, plan: StepPlan, inputs: PaddedInputs, key: Hashable, history: History
    ) -> Recorded:
        fixed = FixedInputs(
            {
                (port, per): (inputs.rows(port) if per is None else inputs.tokens(port, per)).clone()
                for port, per in self._asked[key]
            }
        )
        step = Step(plan.clone(), fixed, self._backend, self._samplers, _NoCalls(), _NoCalls())
        return Recorded(step, fixed, capture, lambda step: self._forward(step, history))

    def _forward(self, step: Step, history: History) -> StepOutputs:
        for sampler, port in history:
            step.remember(sampler, step.tokens(port))
        return dict(self._node.forward(step))

    def _history(self, plan: StepPlan, call: Call) -> History:
        """The samplers that count an input port's ids in this step; a walk's calls all bring a port, or none does."""
        return tuple(
            (name, sampler.spec.history)
            for name, sampler in self._samplers.items()
            if sampler.spec.history is not None
            and plan.samplers[name].features.penalty
            and call.inputs.get(sampler.spec.history) is not None
        )

    def _key(self, plan: StepPlan, walk: str, history: History) -> Hashable:
        """What must agree for two steps to be one recording."""
        features = tuple((name, rows.features) for name, rows in plan.samplers.items())
        tables = tuple(sampler.history.data_ptr() for sampler in self._samplers.values())
        return walk, len(plan.counts), plan.attention.shape, features, tables, history


def _decodes(entry: Entry) -> bool:
    return len(entry.parts) == 1 and entry.parts[0].segment.tokens == 1


def _first_rows(values: torch.Tensor | list[torch.Tensor], rows: int) -> torch.Tensor | list[torch.Tensor]:
    if isinstance(values, list):
        return [value.clone() for value in values[:rows]]
    return values[:rows].clone()
