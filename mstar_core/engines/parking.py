"""Parking: moving a request's cached tokens to host memory and back, exactly, when the pool is full."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mstar_core.engines.sequences import CachedSequence, SequenceStore


@dataclass(slots=True)
class Parked:
    """A request's sequences while it holds no pages; `places` are indices into the saved pages.

    `contents` appears when the device thread has copied the pages, before anything else writes to them; without pages
    it stays None.
    """

    sequences: dict[str, tuple[list[int], int, float]]  # name -> (places, length, position)
    pages: int
    contents: torch.Tensor | None = None  # [pages, layers, 2, page_size, kv_heads, head_dim]


def park(store: SequenceStore, request: int) -> tuple[Parked, list[int]]:
    """Take all of a request's pages away; returns what to keep, and the pages to save, a shared one once."""
    sequences = store.sequences(request)
    pages = list(dict.fromkeys(page for sequence in sequences.values() for page in sequence.pages))
    place = {page: index for index, page in enumerate(pages)}
    kept = {
        name: ([place[page] for page in sequence.pages], sequence.length, sequence.position)
        for name, sequence in sequences.items()
    }
    store.clear(request)
    return Parked(kept, len(pages)), pages


def resume(store: SequenceStore, request: int, parked: Parked) -> list[int]:
    """Give a request its sequences back; returns the pages to load. Raises `OutOfPages`, and changes nothing, if there
    are too few."""
    pages = store.allocator.allocate(parked.pages)
    for name, (places, length, position) in parked.sequences.items():
        own = [pages[place] for place in places]
        store.allocator.share(own)
        store.replace(request, name, CachedSequence(own, length, position))
    store.allocator.release(pages)
    return pages
