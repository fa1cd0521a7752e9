"""Attention by FlashInfer's paged kernels (Ye et al. 2025, arXiv 2501.01005), the default on CUDA devices.

A step's spans are put into at most three groups, each computed by one wrapper of the library: single decode tokens,
causal spans, full spans (a wrapper has one mask). `plan` prepares a group's page table in pinned host memory. `begin`
uploads it and lets the wrappers lay out their work. That layout depends on the query heads and the scale, which only
`run` sees: a combination is planned in `run` when it first appears, and from then on in `begin`.

A wrapper's layout travels through a host buffer of its own, which must stay as it is until the device has read it.
Therefore two `StepWrappers` take turns, so that a step can be planned while the one before it runs. Steps made static
have a `StepWrappers` with fixed device buffers instead, and can be captured in a CUDA graph: `begin` refills the
buffers, then the graph is replayed.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from mstar_core.engines.attention.base import AttentionBackend, AttentionPlan, KVLayout, Span, slots_of
from mstar_core.errors import ConfigurationError

Kind = Literal["decode", "causal", "full"]

_DTYPES = (torch.float16, torch.bfloat16)
"""What the kernels compute with; the library maps no other floating type above 8 bits (`dtype_map`, jit/utils.py)."""

_HEAD_DIMS = (64, 128, 256)
"""Head sizes for which decode and prefill kernels both exist (`DISPATCH_HEAD_DIM`, include/flashinfer/utils.cuh)."""

_CUDA_CORE_GROUPS = (1, 2, 3)
"""Query heads per key head that decode without tensor cores. Larger groups fill a tensor core's tile, and kernels
without them exist for some sizes only (`DISPATCH_GQA_GROUP_SIZE`, include/flashinfer/utils.cuh)."""

_WORKSPACE_BYTES = 256 << 20
"""Scratch memory for partial results: twice what the library recommends. A prefill of version 0.6 needs up to heads per
key head * 2 * SMs * 128 rows * head_dim * 4 bytes (`PrefillPlan`, attention/scheduler.cuh): 132 MiB for 8 heads of 128
on the 132 SMs of an H100."""


@dataclass(frozen=True, slots=True)
class Queries:
    """What a layer asks with; the library's work layout depends on it."""

    heads: int
    scale: float | None


@dataclass(slots=True)
class SpanGroup:
    """Spans of one kind; all on the host until `begin` moves `pages` and `rows` to the device."""

    kind: Kind
    rows: slice | torch.Tensor  # the group's tokens in the step: a range, or [tokens] int64
    starts: torch.Tensor  # [spans + 1] int32: where each span's tokens start within the group
    page_starts: torch.Tensor  # [spans + 1] int32: where each span's pages start in `pages`
    pages: torch.Tensor  # [pages of all spans] int32
    last_page: torch.Tensor  # [spans] int32: tokens on each span's last page, 1 to page size


@dataclass(slots=True)
class FlashInferPlan(AttentionPlan):
    """A step's groups. `static` says that the step uses the fixed buffers of its number of spans."""

    slots: torch.Tensor  # [tokens] int64, on the host until `begin`
    groups: list[SpanGroup]
    static: bool
    wrappers: StepWrappers | None = None


@dataclass(frozen=True, slots=True)
class StaticBuffers:
    """Device memory that every step of one number of decode spans is read from."""

    page_starts: torch.Tensor  # [spans + 1] int32
    pages: torch.Tensor  # [most pages] int32
    last_page: torch.Tensor  # [spans] int32
    slots: torch.Tensor  # [spans] int64


class StepWrappers:
    """The library's wrappers for one step at a time, made on first use; device thread only."""

    def __init__(
        self,
        library: Any,
        workspace: torch.Tensor,
        layout: KVLayout,
        page_size: int,
        dtype: torch.dtype,
        static: StaticBuffers | None = None,
    ) -> None:
        self.static = static
        self.owner: FlashInferPlan | None = None
        self._library = library
        self._workspace = workspace
        self._layout = layout
        self._page_size = page_size
        self._dtype = dtype
        self._made: dict[tuple[Kind, Queries], Any] = {}
        self._planned: set[tuple[Kind, Queries]] = set()
        self._uploaded = torch.cuda.Event() if workspace.is_cuda else None  # type: ignore[no-untyped-call]

    def claim(self, plan: FlashInferPlan) -> None:
        """Serve `plan` from now on: wait until the device has read the last step's layout, then upload the tables."""
        if self._uploaded is not None:
            self._uploaded.synchronize()
        self.owner = plan
        self._planned.clear()
        device = self._workspace.device
        for group in plan.groups:
            group.pages = group.pages.to(device, non_blocking=True)
            if isinstance(group.rows, torch.Tensor):
                group.rows = group.rows.to(device, non_blocking=True)
        if self.static is None:
            plan.slots = plan.slots.to(device, non_blocking=True)
        else:
            plan.slots = self.static.slots.copy_(plan.slots, non_blocking=True)

    def wrapper(self, group: SpanGroup, queries: Queries) -> Any:
        """The wrapper that computes a group of the step, planned."""
        key = (group.kind, queries)
        if key not in self._made:
            self._made[key] = self._decode_wrapper(queries) if group.kind == "decode" else self._prefill_wrapper()
        wrapper = self._made[key]
        if key not in self._planned:
            self._plan(wrapper, group, queries)
            self._planned.add(key)
            if self._uploaded is not None:
                self._uploaded.record(torch.cuda.current_stream(self._workspace.device))
        return wrapper

    def _prefill_wrapper(self) -> Any:
        return self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD")

    def _decode_wrapper(self, queries: Queries) -> Any:
        tensor_cores = queries.heads // self._layout.kv_heads not in _CUDA_CORE_GROUPS
        make = self._library.BatchDecodeWithPagedKVCacheWrapper
        if self.static is None:
            return make(self._workspace, "NHD", use_tensor_cores=tensor_cores)
        return make(
            self._workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=tensor_cores,
            paged_kv_indptr_buffer=self.static.page_starts,
            paged_kv_indices_buffer=self.static.pages,
            paged_kv_last_page_len_buffer=self.static.last_page,
        )

    def _plan(self, wrapper: Any, group: SpanGroup, queries: Queries) -> None:
        """Lay out the work of one group. The planner reads the counts on the host, the kernels all on the device."""
        tables = (group.page_starts, group.pages, group.last_page)
        sizes = (queries.heads, self._layout.kv_heads, self._layout.head_dim, self._page_size)
        if group.kind == "decode":
            wrapper.plan(*tables, *sizes, sm_scale=queries.scale, q_data_type=self._dtype, kv_data_type=self._dtype)
        else:
            wrapper.plan(
                group.starts,
                *tables,
                *sizes,
                causal=group.kind == "causal",
                sm_scale=queries.scale,
                q_data_type=self._dtype,
                kv_data_type=self._dtype,
            )


class FlashInferAttention(AttentionBackend):
    """Paged attention by FlashInfer on a CUDA device, in float16 or bfloat16 and head sizes of 64, 128 and 256.

    Results agree with other backends within the type's precision; the last bits may depend on a step's other spans,
    because the library splits long sequences by the load of the whole step.
    """

    def __init__(
        self, layout: KVLayout, *, pages: int, page_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        library = _library(layout, device, dtype)
        super().__init__(layout, pages=pages, page_size=page_size, device=device, dtype=dtype)
        # The decode wrapper asks for zeros on first use.
        workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._parts = (library, workspace, layout, page_size, dtype)
        self._turns = cycle((StepWrappers(*self._parts), StepWrappers(*self._parts)))
        self._static: dict[int, StepWrappers] = {}
        self._seen: list[Queries] = []

    def make_static(self, spans: int, longest: int) -> None:
        """Give steps of exactly `spans` decode spans, of at most `longest` tokens each, fixed buffers from now on.

        Called before the first plan that shall be captured. A step must have run once before its capture.
        """
        device, most = self.pool.device, spans * -(-longest // self.page_size)
        buffers = StaticBuffers(
            page_starts=torch.zeros(spans + 1, dtype=torch.int32, device=device),
            pages=torch.zeros(most, dtype=torch.int32, device=device),
            last_page=torch.ones(spans, dtype=torch.int32, device=device),
            slots=torch.zeros(spans, dtype=torch.int64, device=device),
        )
        self._static[spans] = StepWrappers(*self._parts, static=buffers)

    def plan(self, spans: Sequence[Span]) -> FlashInferPlan:
        """Slots and page tables on the host."""
        by_kind: dict[Kind, list[Span]] = {"decode": [], "causal": [], "full": []}
        for span in spans:
            by_kind["decode" if span.decode else "causal" if span.causal else "full"].append(span)
        groups = [self._group(kind, alike) for kind, alike in by_kind.items() if alike]
        slots = self._host(slots_of(spans, self.page_size))
        return FlashInferPlan(slots, groups, static=self._is_static(groups))

    def begin(self, plan: AttentionPlan) -> None:
        """Upload the step's tables and lay out its work for all query heads and scales seen so far."""
        assert isinstance(plan, FlashInferPlan)
        if plan.static:
            plan.wrappers = self._static[len(plan.slots)]
        else:
            plan.wrappers = next(self._turns)
        plan.wrappers.claim(plan)
        for queries in self._seen:
            for group in plan.groups:
                plan.wrappers.wrapper(group, queries)

    def run(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        plan: AttentionPlan,
        *,
        scale: float | None = None,
    ) -> torch.Tensor:
        """Write, then one kernel per group."""
        assert isinstance(plan, FlashInferPlan)
        wrappers = plan.wrappers
        assert wrappers is not None, "begin comes before run"
        assert wrappers.owner is plan, "another step began before this one had run"
        self.write(layer, keys, values, plan.slots)
        asked = Queries(queries.shape[1], scale)
        if asked not in self._seen:
            self._seen.append(asked)
        cache = (self.pool[layer, 0], self.pool[layer, 1])  # [pages, page_size, kv_heads, head_dim] each
        if len(plan.groups) == 1:
            out: torch.Tensor = wrappers.wrapper(plan.groups[0], asked).run(queries, cache)
            return out
        result = queries.new_empty(queries.shape)
        for group in plan.groups:
            result[group.rows] = wrappers.wrapper(group, asked).run(queries[group.rows], cache)
        return result

    def _is_static(self, groups: Sequence[SpanGroup]) -> bool:
        """Whether the step is one of decode spans alone, of a number that has buffers, and fits these."""
        if len(groups) != 1 or groups[0].kind != "decode":
            return False
        wrappers = self._static.get(len(groups[0].last_page))
        buffers = None if wrappers is None else wrappers.static
        return buffers is not None and len(groups[0].pages) <= len(buffers.pages)

    def _group(self, kind: Kind, spans: Sequence[Span]) -> SpanGroup:
        counts = np.fromiter((span.tokens for span in spans), np.int64, len(spans))
        lengths = counts + np.fromiter((span.cached for span in spans), np.int64, len(spans))
        used = -(-lengths // self.page_size)
        pages = np.concatenate([span.pages[:count] for span, count in zip(spans, used, strict=True)])
        return SpanGroup(
            kind=kind,
            rows=self._rows(spans),
            starts=self._host(_starts(counts)),
            page_starts=self._host(_starts(used)),
            pages=self._host(pages.astype(np.int32)),
            last_page=self._host(((lengths - 1) % self.page_size + 1).astype(np.int32)),
        )

    def _rows(self, spans: Sequence[Span]) -> slice | torch.Tensor:
        if all(before.stop == after.start for before, after in pairwise(spans)):
            return slice(spans[0].start, spans[-1].stop)
        return self._host(np.concatenate([np.arange(span.start, span.stop) for span in spans]))

    def _host(self, numbers: npt.NDArray[np.generic]) -> torch.Tensor:
        """Numbers in memory that the device can read without making the host wait."""
        tensor = torch.from_numpy(numbers)
        return tensor.pin_memory() if self.pool.is_cuda else tensor


def _starts(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Running sums from 0, `[counts + 1]`."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _library(layout: KVLayout, device: torch.device, dtype: torch.dtype) -> Any:
    """The `flashinfer` module, once it is clear that it is installed and has kernels for this pool."""
    other = "use the attention backend 'torch'"
    if device.type != "cuda":
        raise ConfigurationError(f"attention backend 'flashinfer' runs on CUDA devices, not on {device}; {other}")
    if dtype not in _DTYPES:
        raise ConfigurationError(
            f"attention backend 'flashinfer' computes in float16 or bfloat16, not {dtype}; {other}"
        )
    if layout.head_dim not in _HEAD_DIMS:
        raise ConfigurationError(
            f"attention backend 'flashinfer' has kernels for head sizes {_HEAD_DIMS}, not {layout.head_dim}; {other}"
        )
    try:
        return importlib.import_module("flashinfer")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"attention backend 'flashinfer' needs a package that is not installed ({error.name}): "
            f"pip install 'mstar-core[cuda]', or {other}"
        ) from error
