"""Attention by PyTorch alone: gather pages, then masked scaled dot product over a padded batch.

Works on every device and is the default on CPUs. A step's spans are grouped so that padding stays small; inside a
layer each group is one gather of keys, one of values and one attention call, whatever the number of requests. A long
span whose tokens all see the same keys is attended to by itself: without padding and mask, and without a gather where
its pages lie side by side.

Padding does not change a token's result, not even in its last bit: padded keys are masked to a weight of exactly zero,
and PyTorch's CPU kernel works through the keys in blocks that start at the first one. What would change it is the
number of query rows dropping to one (another matrix kernel), hence `_LEAST_ROWS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F

from mstar_core.engines.attention.base import (
    AttentionBackend,
    AttentionPlan,
    KVLayout,
    Span,
    bucket,
    page_table,
    slots_of,
)

_LEAST_ROWS = 2
"""A prefill group has at least this many query rows per request."""

_LEAST_WHOLE = 32
"""Tokens from which a span without a causal mask is computed alone: a call's overhead is small beside it."""

_LARGEST_MASK = 1 << 26
"""Elements of one group's mask; a group that would need more is split by requests."""


@dataclass(slots=True)
class DecodeGroup:
    """Spans of one token each."""

    pages: torch.Tensor  # [requests * columns] int64
    mask: torch.Tensor  # [requests, 1, 1, columns * page_size], 0 or -inf
    tokens: torch.Tensor | None  # [requests] int64: places in the step, None for "all, in order"


@dataclass(slots=True)
class PrefillGroup:
    """Spans of similar length, padded to `rows` query rows each."""

    pages: torch.Tensor  # [requests * columns] int64
    mask: torch.Tensor  # [requests, 1, rows, columns * page_size], 0 or -inf
    gather: torch.Tensor | None  # [requests * rows] int64: the token of each row (padding: token 0)
    rows: int
    tokens: torch.Tensor | None  # [valid rows] int64: places in the step of the valid rows, None for "all, in order"
    valid: torch.Tensor | None  # [valid rows] int64: the rows that are not padding, None when there is no padding


@dataclass(slots=True)
class WholeSpan:
    """One long span whose tokens see all of its keys."""

    pages: torch.Tensor | slice  # [columns] int64, or a range of pages side by side
    keys: int
    tokens: slice  # places in the step


Group: TypeAlias = "DecodeGroup | PrefillGroup | WholeSpan"


@dataclass(slots=True)
class TorchPlan(AttentionPlan):
    """Slots, and the groups that the step's spans were put into."""

    slots: torch.Tensor  # [tokens] int64
    groups: list[Group]
    together: slice | None = None  # the same slots, where they lie side by side
    static: bool = False
    shape: int = 0  # columns of the page table of a static plan


class TorchAttention(AttentionBackend):
    """Paged attention in plain PyTorch operations."""

    def __init__(
        self, layout: KVLayout, *, pages: int, page_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(layout, pages=pages, page_size=page_size, device=device, dtype=dtype)
        self._longest: dict[int, int] = {}  # by number of spans
        self._buffers: dict[tuple[int, int], TorchPlan] = {}

    def make_static(self, spans: int, longest: int) -> None:
        """Steps of `spans` decode spans are computed from fixed tables, one set for each number of columns."""
        self._longest[spans] = longest

    def begin(self, plan: AttentionPlan) -> None:
        """Copy a static plan's tables to where they are read from."""
        assert isinstance(plan, TorchPlan)
        if not plan.static:
            return
        key = len(plan.slots), plan.shape
        fixed = self._buffers.setdefault(key, plan)
        if fixed is plan:
            return
        old, new = fixed.groups[0], plan.groups[0]
        assert isinstance(old, DecodeGroup), "only decode steps are static"
        assert isinstance(new, DecodeGroup), "only decode steps are static"
        for to, source in ((fixed.slots, plan.slots), (old.pages, new.pages), (old.mask, new.mask)):
            to.copy_(source)
        plan.slots, plan.groups = fixed.slots, fixed.groups

    def plan(self, spans: Sequence[Span]) -> TorchPlan:
        """One group for all single tokens, and one for each class of similar prefill shapes."""
        groups: list[Group] = [self._whole_span(span) for span in spans if _is_whole(span)]
        singles = [span for span in spans if span.decode]
        if singles:
            groups.append(self._decode_group(singles, alone=len(singles) == len(spans)))
        for alike in self._alike([span for span in spans if not span.decode and not _is_whole(span)]):
            groups.append(self._prefill_group(alike, alone=len(alike) == len(spans)))
        made = TorchPlan(self._device(slots_of(spans, self.page_size)), groups)
        if len(spans) == 1 and isinstance(only := groups[0], WholeSpan) and isinstance(only.pages, slice):
            first = only.pages.start * self.page_size + spans[0].cached
            made.together = slice(first, first + spans[0].tokens)
        if len(singles) == len(spans) and len(spans) in self._longest:
            assert isinstance(groups[0], DecodeGroup), "all spans are decode spans"
            made.shape = groups[0].mask.shape[-1] // self.page_size
            made.static = max(span.cached for span in spans) < self._longest[len(spans)]
        return made

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
        """Write, then attend group by group."""
        assert isinstance(plan, TorchPlan)
        if plan.together is None:
            self.write(layer, keys, values, plan.slots)
        else:
            cache = self.pool[layer].flatten(1, 2)  # [2, slots, kv_heads, head_dim]
            cache[0, plan.together], cache[1, plan.together] = keys, values
        only = plan.groups[0]
        if len(plan.groups) == 1 and (only.tokens is None or isinstance(only, WholeSpan)):
            return self._attend(layer, queries, only, scale)
        result = torch.empty_like(queries)
        for group in plan.groups:
            assert group.tokens is not None
            result[group.tokens] = self._attend(layer, queries, group, scale)
        return result

    def _attend(self, layer: int, queries: torch.Tensor, group: Group, scale: float | None) -> torch.Tensor:
        if isinstance(group, WholeSpan):
            return self._attend_whole(layer, queries[group.tokens], group, scale)
        keys, values = self._cached(layer, group)
        if isinstance(group, DecodeGroup):
            return _attend_decode(queries, keys, values, group, scale)
        return _attend_prefill(queries, keys, values, group, scale)

    def _attend_whole(self, layer: int, queries: torch.Tensor, span: WholeSpan, scale: float | None) -> torch.Tensor:
        keys, values = (
            (side[span.pages] if isinstance(span.pages, slice) else side.index_select(0, span.pages))
            .flatten(0, 1)[: span.keys]
            .transpose(0, 1)[None]
            for side in self.pool[layer]
        )  # [1, kv_heads, keys, head_dim] each
        padded = queries.transpose(0, 1)[None]  # [1, heads, tokens, head_dim]
        shared = padded.shape[1] != keys.shape[1]
        out = F.scaled_dot_product_attention(padded, keys, values, scale=scale, enable_gqa=shared)
        return out[0].transpose(0, 1)

    def _cached(self, layer: int, group: DecodeGroup | PrefillGroup) -> tuple[torch.Tensor, torch.Tensor]:
        """The group's keys and values, `[requests, kv_heads, columns * page_size, head_dim]` each."""
        shape = (group.mask.shape[0], group.mask.shape[3], *self.pool.shape[-2:])
        keys, values = self.pool[layer]  # [pages, page_size, kv_heads, head_dim]
        return (
            keys.index_select(0, group.pages).view(shape).transpose(1, 2),
            values.index_select(0, group.pages).view(shape).transpose(1, 2),
        )

    def _whole_span(self, span: Span) -> WholeSpan:
        keys = span.cached + span.tokens
        pages = span.pages[: -(-keys // self.page_size)]
        first, last = int(pages[0]), int(pages[-1])
        together = last - first == len(pages) - 1 and bool((np.diff(pages) == 1).all())
        where = slice(first, last + 1) if together else self._device(pages)
        return WholeSpan(where, keys, slice(span.start, span.stop))

    def _decode_group(self, spans: Sequence[Span], *, alone: bool) -> DecodeGroup:
        lengths = np.fromiter((span.cached + 1 for span in spans), np.int64, len(spans))
        columns = bucket(-(-int(lengths.max()) // self.page_size))
        unseen = np.arange(columns * self.page_size) >= lengths[:, None]  # [requests, keys]
        mask = self._mask(unseen)[:, None, None]
        places = None if alone else self._device(np.fromiter((span.start for span in spans), np.int64, len(spans)))
        return DecodeGroup(self._device(page_table(spans, columns, self.page_size).reshape(-1)), mask, places)

    def _alike(self, spans: Sequence[Span]) -> list[list[Span]]:
        """Spans by rounded shape, in an order that only depends on the spans; no group's mask gets too large."""
        classes: dict[tuple[int, int], list[Span]] = {}
        for span in spans:
            columns = -(-(span.cached + span.tokens) // self.page_size)
            classes.setdefault((bucket(span.tokens), bucket(columns)), []).append(span)
        groups = []
        for (rows, columns), alike in sorted(classes.items()):
            most = max(_LARGEST_MASK // (rows * columns * self.page_size), 1)
            groups += [alike[first : first + most] for first in range(0, len(alike), most)]
        return groups

    def _prefill_group(self, spans: Sequence[Span], *, alone: bool) -> PrefillGroup:
        counts = np.fromiter((span.tokens for span in spans), np.int64, len(spans))
        cached = np.fromiter((span.cached for span in spans), np.int64, len(spans))
        causal = np.fromiter((span.causal for span in spans), bool, len(spans))
        starts = np.fromiter((span.start for span in spans), np.int64, len(spans))
        rows = max(int(counts.max()), _LEAST_ROWS)
        columns = bucket(-(-int((cached + counts).max()) // self.page_size))
        row = np.arange(rows)
        # The last key that each row sees; padded rows see what the last valid row sees.
        last = np.where(causal[:, None], np.minimum(row, counts[:, None] - 1), counts[:, None] - 1) + cached[:, None]
        unseen = np.arange(columns * self.page_size) > last[:, :, None]  # [requests, rows, keys]
        present = row < counts[:, None]  # [requests, rows]
        whole = bool(present.all())
        return PrefillGroup(
            pages=self._device(page_table(spans, columns, self.page_size).reshape(-1)),
            mask=self._mask(unseen)[:, None],
            gather=None if whole and alone else self._device(np.where(present, starts[:, None] + row, 0).reshape(-1)),
            rows=rows,
            tokens=None if alone else self._device((starts[:, None] + row)[present]),
            valid=None if whole else self._device(np.flatnonzero(present)),
        )

    def _mask(self, unseen: np.ndarray) -> torch.Tensor:
        mask = torch.zeros(unseen.shape, dtype=self.pool.dtype)
        return mask.masked_fill_(torch.from_numpy(unseen), float("-inf")).to(self.pool.device)

    def _device(self, numbers: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self.pool.device)


def _is_whole(span: Span) -> bool:
    return not span.causal and span.tokens >= _LEAST_WHOLE


def _attend_decode(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: DecodeGroup, scale: float | None
) -> torch.Tensor:
    """Attention of one token per request; the query heads that share a key head are the rows of one product."""
    if group.tokens is not None:
        queries = queries.index_select(0, group.tokens)
    requests, heads, head_dim = queries.shape
    grouped = queries.reshape(
        requests, keys.shape[1], -1, head_dim
    )  # [requests, kv_heads, heads per kv head, head_dim]
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=group.mask, scale=scale)
    return out.reshape(requests, heads, head_dim)


def _attend_prefill(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: PrefillGroup, scale: float | None
) -> torch.Tensor:
    """Attention of padded prefills; gives the valid rows alone, `[valid rows, heads, head_dim]`."""
    if group.gather is not None:
        queries = queries.index_select(0, group.gather)
    padded = queries.view(keys.shape[0], group.rows, *queries.shape[1:]).transpose(1, 2)
    shared = padded.shape[1] != keys.shape[1]
    out = F.scaled_dot_product_attention(
        padded, keys, values, attn_mask=group.mask, scale=scale, enable_gqa=shared
    )  # [requests, heads, rows, head_dim]
    flat = out.transpose(1, 2).flatten(0, 1)
    return flat if group.valid is None else flat.index_select(0, group.valid)
