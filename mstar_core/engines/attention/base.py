"""What an attention backend is: one pool of pages, a plan per step, one call per layer.

A plan is made on the loop thread from numbers alone and may be made while the previous step still runs; `begin` and
`run` follow on the device thread, in the order in which the plans were made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mstar_core.engines.pages import NULL_PAGE
from mstar_core.engines.sequences import PageCopy


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """What one token leaves in the cache, on this rank: `layers` times keys and values `[kv_heads, head_dim]`."""

    layers: int
    kv_heads: int
    head_dim: int

    def token_bytes(self, dtype: torch.dtype) -> int:
        """Bytes per cached token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype.itemsize


@dataclass(frozen=True, slots=True)
class Span:
    """New tokens `start` to `stop` of a step, all of one sequence, as attention sees them.

    `pages` is the sequence's page table with room for the new tokens, which follow `cached` older ones; `causal` is
    their mask among each other. A `decode` span is a segment of one token; a one-token piece of a longer prefill is
    not, because the two are computed by different kernels and a token's result must not depend on how a prefill was
    cut.
    """

    start: int
    stop: int
    pages: npt.NDArray[np.int64]
    cached: int
    causal: bool
    decode: bool

    @property
    def tokens(self) -> int:
        """New tokens."""
        return self.stop - self.start


class AttentionPlan:
    """A step's attention metadata; backends subclass it. `slots[t]` is where token `t` is written.

    A `static` plan makes `run` read from memory that stays the same for every static plan of as many spans and the
    same `shape`, from `begin` on; a step that was recorded with one may be replayed for another.
    """

    slots: torch.Tensor  # [tokens] int64
    static: bool = False
    shape: Hashable = None


class AttentionBackend(ABC):
    """Keys and values of one node for all requests, and attention over them.

    `pool` is `[layers, 2, pages, page_size, kv_heads, head_dim]`: per layer one tensor whose halves are keys and
    values in pages of layout NHD. It has one page more than may be handed out, the null page.
    """

    def __init__(
        self, layout: KVLayout, *, pages: int, page_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.layout = layout
        self.page_size = page_size
        shape = (layout.layers, 2, pages + 1, page_size, layout.kv_heads, layout.head_dim)
        self.pool = torch.zeros(shape, device=device, dtype=dtype)

    @property
    def tokens(self) -> int:
        """The tokens that the pool holds."""
        return (self.pool.shape[2] - 1) * self.page_size

    @abstractmethod
    def make_static(self, spans: int, longest: int) -> None:
        """From now on let the plans of exactly `spans` decode spans, of at most `longest` tokens each, be static."""

    @abstractmethod
    def plan(self, spans: Sequence[Span]) -> AttentionPlan:
        """Metadata for one step whose tokens are exactly those of `spans`, in order (loop thread)."""

    def begin(self, plan: AttentionPlan) -> None:  # noqa: B027 (a backend without state has nothing to do)
        """Get ready for the `run`s of one step (device thread)."""

    @abstractmethod
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
        """Write the step's keys and values `[tokens, kv_heads, head_dim]` into the cache, then attend.

        `queries` and the result are `[tokens, heads, head_dim]`; `scale` is head_dim ** -0.5 unless given.
        """

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        """Put keys and values of the step's tokens into their slots."""
        cache = self.pool[layer].flatten(1, 2)  # [2, slots, kv_heads, head_dim]
        cache[0].index_copy_(0, slots, keys)
        cache[1].index_copy_(0, slots, values)

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy whole pages, all layers at once; no page is both a source and a destination."""
        if copies:
            sources, targets = torch.tensor(copies, device=self.pool.device).unbind(1)
            self.pool.index_copy_(2, targets, self.pool.index_select(2, sources))

    def clear_pages(self, pages: Sequence[int]) -> None:
        """Zero fresh pages. What another request left there is masked, but a NaN times zero would still be a NaN."""
        if pages:
            self.pool.index_fill_(2, torch.tensor(pages, device=self.pool.device), 0)

    def save_pages(self, pages: Sequence[int]) -> torch.Tensor:
        """A copy of pages in host memory, contiguous, `[pages, layers, 2, page_size, kv_heads, head_dim]`."""
        places = torch.tensor(pages, device=self.pool.device)
        return self.pool.movedim(2, 0).index_select(0, places).cpu().contiguous()

    def load_pages(self, pages: Sequence[int], saved: torch.Tensor) -> None:
        """Put back what `save_pages` returned, maybe on other pages."""
        places = torch.tensor(pages, device=self.pool.device)
        self.pool.movedim(2, 0).index_copy_(0, places, saved.to(self.pool.device))


def slots_of(spans: Sequence[Span], page_size: int) -> npt.NDArray[np.int64]:
    """The cache slot of every token of a step, `[tokens]`: page number times page size plus the place in the page."""
    if all(span.tokens == 1 for span in spans):
        places = np.fromiter((span.cached for span in spans), np.int64, len(spans))
        pages = np.fromiter((span.pages[span.cached // page_size] for span in spans), np.int64, len(spans))
        return pages * page_size + places % page_size
    parts = []
    for span in spans:
        places = np.arange(span.cached, span.cached + span.tokens)
        parts.append(span.pages[places // page_size] * page_size + places % page_size)
    return np.concatenate(parts)


def page_table(spans: Sequence[Span], columns: int, page_size: int) -> npt.NDArray[np.int64]:
    """The pages of each span's sequence, `[spans, columns]`, padded with the null page."""
    table = np.full((len(spans), columns), NULL_PAGE, np.int64)
    for row, span in enumerate(spans):
        used = -(-(span.cached + span.tokens) // page_size)
        table[row, :used] = span.pages[:used]
    return table


def bucket(count: int) -> int:
    """The next of 1, 2, ... 8, 10, 12, 14, 16, 20, ... : four steps per octave, so that shapes repeat and the padding
    stays below a quarter."""
    if count <= 8:
        return max(count, 1)
    step = 1 << max((count - 1).bit_length() - 3, 0)
    return -(-count // step) * step
