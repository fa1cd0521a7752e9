"""Attention on CPUs with compiled kernels: decoding reads pages where they lie, prefills go through PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mstar_core.engines.attention.base import AttentionPlan, KVLayout, Span, page_table
from mstar_core.engines.attention.torch_backend import DecodeGroup, Group, TorchAttention, TorchPlan
from mstar_core.engines.kernels import attends, compiled_kernels
from mstar_core.errors import ConfigurationError


@dataclass(slots=True)
class PagedGroup(DecodeGroup):
    """Spans of one token each, read page by page: `pages` is `[requests, columns]`, and there is no mask."""

    lengths: torch.Tensor  # [requests] int64: cached tokens, the new one included


class CompiledAttention(TorchAttention):
    """`TorchAttention`, with one compiled function for writing and attending in a decode step."""

    def __init__(
        self, layout: KVLayout, *, pages: int, page_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        if device.type != "cpu" or not attends(dtype, layout.head_dim):
            raise ConfigurationError(
                f"compiled attention takes float32 or bfloat16 on a CPU and head sizes divisible by 16, not {dtype} on "
                f"{device} with {layout.head_dim}; leave compile off, or choose the torch backend"
            )
        super().__init__(layout, pages=pages, page_size=page_size, device=device, dtype=dtype)
        self._kernels = compiled_kernels()

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
        """Write and attend at once where all tokens decode, else group by group."""
        assert isinstance(plan, TorchPlan)
        only = plan.groups[0]
        if isinstance(only, PagedGroup) and only.tokens is None:
            return self._decode(layer, queries, keys, values, only, plan.slots, scale)
        return super().run(layer, queries, keys, values, plan, scale=scale)

    def _attend(self, layer: int, queries: torch.Tensor, group: Group, scale: float | None) -> torch.Tensor:
        if not isinstance(group, PagedGroup):
            return super()._attend(layer, queries, group, scale)
        assert group.tokens is not None
        chosen = queries.index_select(0, group.tokens)
        unused = chosen[:, : self.layout.kv_heads]
        return self._decode(layer, chosen, unused, unused, group, None, scale)

    def _decode(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        group: PagedGroup,
        slots: torch.Tensor | None,
        scale: float | None,
    ) -> torch.Tensor:
        factor = self.layout.head_dim**-0.5 if scale is None else scale
        return self._kernels.paged_decode(
            queries, keys, values, self.pool[layer], slots, group.pages, group.lengths, factor
        )

    def _decode_group(self, spans: Sequence[Span], *, alone: bool) -> PagedGroup:
        lengths = np.fromiter((span.cached + 1 for span in spans), np.int64, len(spans))
        columns = -(-int(lengths.max()) // self.page_size)
        places = None if alone else self._device(np.fromiter((span.start for span in spans), np.int64, len(spans)))
        return PagedGroup(
            pages=self._device(page_table(spans, columns, self.page_size)),
            mask=self._no_mask,
            tokens=places,
            lengths=self._device(lengths),
        )

    _no_mask = torch.empty(0)
