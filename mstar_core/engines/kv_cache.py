"""The KV cache engine: paged sequences, chunked prefill, parking, one attention plan per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mstar_core.engines.attention import default_backend, make_backend
from mstar_core.engines.base import (
    Batch,
    BatchLimits,
    Call,
    Engine,
    EngineSettings,
    Handover,
    Leaving,
    NodeContext,
    NodeRequest,
    Outputs,
    Row,
)
from mstar_core.engines.histories import Histories
from mstar_core.engines.kv_batch import KVBatch
from mstar_core.engines.kv_handover import KVHandovers
from mstar_core.engines.kv_node import KVNode
from mstar_core.engines.page_work import PageWork
from mstar_core.engines.pages import PageAllocator
from mstar_core.engines.residents import Entry, Resident, Residents
from mstar_core.engines.sampling import Sampler
from mstar_core.engines.segments import Segment, cut
from mstar_core.engines.sequences import SequenceStore
from mstar_core.engines.static_steps import Capture, CudaGraphs, StepRunner
from mstar_core.engines.step import CallInputs
from mstar_core.engines.step_plans import StepPlanner


class KVCacheEngine(Engine):
    """Runs a `KVNode` for many requests on one pool of KV pages."""

    def __init__(
        self,
        node: KVNode,
        context: NodeContext,
        settings: EngineSettings,
        *,
        attention: str | None = None,
        capture: Capture | None = None,
    ) -> None:
        self.node = node
        self.context = context
        self.run_ahead = frozenset(node.run_ahead)
        pages = settings.kv_tokens // settings.page_tokens
        self.backend = make_backend(
            attention or default_backend(node.kv, context.device, context.dtype, compiled=settings.compile),
            node.kv,
            pages=pages,
            page_size=settings.page_tokens,
            device=context.device,
            dtype=context.dtype,
        )
        self.work = PageWork(self.backend)
        self.store = SequenceStore(PageAllocator(pages), settings.page_tokens)
        self.residents = Residents(self.store, self.work)
        self.samplers = {
            name: Sampler(
                spec,
                purpose=(context.node.name, name),
                slots=settings.batch.requests,
                masks=node.masks.get(name),
                device=context.device,
            )
            for name, spec in node.samplers.items()
        }
        self.histories = Histories(self.samplers, self.work)
        self._handovers = KVHandovers(node, self.backend, self.residents, self.histories, self.work)
        self._planner = StepPlanner(node, self.backend, self.samplers, context.device)
        if capture is None and settings.compile and context.device.type == "cuda":
            capture = CudaGraphs()
        self.runner = StepRunner(node, self.backend, self.samplers, capture)
        self._ports = [port.name for port in context.node.outputs]
        self._axes = {port.name: port.tokens for port in context.node.inputs if port.tokens is not None}

    @classmethod
    def build(cls, node: Any, context: NodeContext, settings: EngineSettings) -> KVCacheEngine:
        """The engine around a `KVNode`, with the backend that fits the device."""
        return cls(node, context, settings)

    def open(self, request: NodeRequest) -> None:
        """Give the request a history slot and let the node make its state."""
        settings = {name: spec.settings(request.params) for name, spec in self.node.samplers.items()}
        resident = self.residents.open(request, settings)
        self.histories.make_room(self.residents.slots)
        self.histories.forget(resident)
        request.state = self.node.open(request)

    def collect(self, walk: str, calls: Sequence[Call], limits: BatchLimits) -> Batch | None:
        """Calls from the front whose tokens fit `limits` and whose pages could be reserved; a long prefill in parts."""
        running: list[Entry] = []
        settled: list[Entry] = []  # nothing of them runs
        budget = limits.tokens
        for call in calls:
            if budget <= 0 or len(running) == limits.requests:
                break
            resident = self.residents.by_key[call.request.key]
            if any(entry.resident is resident for entry in running):
                continue
            # An isolation boundary: what the node says of one call, or its request lacks, fails that call alone.
            try:
                entry = self._entry(call, resident, budget, first=not running)
            except Exception as error:
                settled.append(Entry(call, resident, error=error))
                continue
            if entry is not None:
                budget -= entry.tokens
                (running if entry.parts else settled).append(entry)
        if not running and not settled and calls:
            oldest = min(calls, key=lambda call: self.residents.by_key[call.request.key].order)
            entry = self._entry(oldest, self.residents.by_key[oldest.request.key], budget, first=True, stuck=True)
            running += [entry] if entry else []
        return self._batch(walk, running, settled) if running or settled else None

    def run(self, batch: Batch) -> None:
        """Do the queued page work, then the step; copy `host_outputs` to the host."""
        assert isinstance(batch, (KVBatch, Leaving))
        with torch.inference_mode():
            for work in batch.work:
                work()
            if isinstance(batch, Leaving) or batch.plan is None:
                return
            running = batch.running
            inputs = CallInputs(
                values=[self.node.inputs(entry.call) for entry in running],
                parts=[entry.parts for entry in running],
                done=[entry.done for entry in running],
                axes=self._axes,
                device=self.context.device,
            )
            outputs = self.runner.run(batch.plan, inputs, running, batch.padding, batch.marks)
            batch.fill(outputs, self.node.host_outputs)

    def finish(self, batch: Batch) -> list[Outputs]:
        """Per call its outputs: what the node's `finish` says, and `Row`s for the other ports."""
        assert isinstance(batch, KVBatch)
        return [self._outcome(batch, index, entry) for index, entry in enumerate(batch.entries)]

    def drop(self, batch: Batch, call: Call) -> None:
        """Put the call's sequences, histories and progress back to what they were before it."""
        assert isinstance(batch, KVBatch)
        index = batch.calls.index(call)
        entry = batch.entries[index]
        entry.dropped = True
        if entry.reservation is None:
            return
        entry.reservation.rollback()
        call.progress = entry.done
        del entry.resident.pieces.get(call, [])[entry.pieces_before :]
        for mark in batch.marks:
            self.histories.take_back(mark, batch.entries, index)
        self.residents.landed(entry)

    def close(self, request: NodeRequest) -> None:
        """Free the request's pages and slot, and what the node holds for it."""
        self.residents.close(request)
        self.node.close(request)
        request.state = None

    def leave(self, request: NodeRequest) -> Leaving:
        """Free the request's pages; what was on them, histories and the node's state are handed over."""
        return self._handovers.leave(request)

    def enter(self, request: NodeRequest, handover: Handover) -> None:
        """Let the request go on from another engine's pages, histories and state."""
        self._handovers.enter(request, handover)

    def capacity(self) -> int | None:
        """Tokens in the pool."""
        return self.store.allocator.pages * self.store.page_size

    def metrics(self) -> Mapping[str, float]:
        """Pages in use and in all; requests open and parked; what the node counts."""
        residents = self.residents.by_key.values()
        return {
            "kv_pages": self.store.allocator.pages,
            "kv_pages_used": self.store.allocator.used,
            "kv_requests": len(residents),
            "kv_requests_parked": sum(resident.parked is not None for resident in residents),
            **self.node.metrics(),
        }

    def check_integrity(self) -> None:
        """Raise AssertionError unless every page is accounted for."""
        self.residents.check_integrity()

    def _entry(self, call: Call, resident: Resident, budget: int, *, first: bool, stuck: bool = False) -> Entry | None:
        segments = _segments(self.node.segments(call))
        if not segments:
            return Entry(call, resident)
        parts = cut(segments, call.progress, budget, alone=first)
        if not parts:
            return None
        forgets = call.progress == 0 and self.node.forgets(call)
        reservation = self.residents.reserve(resident, parts, first=first, stuck=stuck)
        if reservation is None:
            return None
        if forgets:
            self.histories.forget(resident)
        total = sum(segment.tokens for segment in segments)
        done = call.progress
        call.progress += sum(part.tokens for part in parts)
        return Entry(
            call,
            resident,
            parts,
            reservation,
            final=call.progress == total,
            done=done,
            pieces_before=len(resident.pieces.get(call, ())),
        )

    def _batch(self, walk: str, running: Sequence[Entry], settled: Sequence[Entry]) -> KVBatch:
        batch = KVBatch(walk, running, settled)
        for entry in running:
            self.residents.took_off(entry)
        if running:
            batch.padding = self.runner.padding(running)
            batch.plan = self._planner.plan(running, batch.padding)
            for entry in running:
                assert entry.reservation is not None
                entry.reservation.release_scratch()
        batch.work = self.work.take()
        return batch

    def _outcome(self, batch: KVBatch, index: int, entry: Entry) -> Outputs:
        if entry.dropped or entry.error is not None:
            return None if entry.dropped else entry.error
        if entry.reservation is None:
            return {}
        entry.reservation.settle()
        self.residents.landed(entry)
        entry.call.tokens += sum(part.tokens for part in entry.parts if part.segment.commit)
        if not entry.final:
            return None
        if entry.done:
            entry.resident.pieces.pop(entry.call, None)
        # An isolation boundary: what the node makes of one call's results fails that call alone.
        try:
            decided = self.node.finish(entry.call, batch.seen(index))
        except Exception as error:
            return error
        rows = {name: Row(batch.output, name, index) for name in self._ports if name in batch.output.tensors}
        return {name: value for name, value in (rows | dict(decided)).items() if value is not None}


def _segments(given: Segment | Sequence[Segment]) -> Sequence[Segment]:
    segments = (given,) if isinstance(given, Segment) else tuple(given)
    if segments and not any(segment.tokens for segment in segments):
        raise ValueError("the call's segments hold no tokens; give at least one, or no segments to do nothing")
    return segments
