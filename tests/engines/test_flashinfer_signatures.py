"""What we pass to FlashInfer, against the installed library: its own signatures, and its own plain references.

No kernel runs, so this works without a GPU. The references (`flashinfer.trace.templates`) take every page as full and
give bfloat16; sequences here therefore end at page borders.
"""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mstar_core.engines.attention import flashinfer_backend
from mstar_core.engines.attention.base import KVLayout, Span
from mstar_core.engines.attention.flashinfer_backend import FlashInferAttention
from mstar_core.engines.attention.torch_backend import TorchAttention

PAGE, HEADS = 4, 6
LAYOUT = KVLayout(layers=1, kv_heads=2, head_dim=64)


@pytest.fixture(scope="module")
def flashinfer():
    return pytest.importorskip("flashinfer")


def bound(function, *args, **kwargs):
    """The arguments as `function` would get them; TypeError where it takes no such argument."""
    signature = inspect.signature(function)
    assert next(iter(signature.parameters)) == "self"
    arguments = signature.bind(None, *args, **kwargs)
    arguments.apply_defaults()
    return arguments.arguments


class Bound:
    """Stands in for one of the library's wrappers: checks every call against it, and answers with its reference."""

    def __init__(self, real, reference, *args, **kwargs):
        self.real, self.reference = real, reference
        made = bound(real.__init__, *args, **kwargs)
        assert made["kv_layout"] == "NHD"
        assert made["float_workspace_buffer"].dtype == torch.uint8

    def plan(self, *args, **kwargs):
        # The decode wrapper's `plan` passes its options on to `_plan_impl`, where these are named.
        self.planned = bound(getattr(self.real, "_plan_impl", self.real.plan), *args, **kwargs)
        assert self.planned["q_data_type"] == self.planned["kv_data_type"] == torch.float32
        bound(self.real.plan, *args, **kwargs)

    def run(self, *args, **kwargs):
        ran, plan = bound(self.real.run, *args, **kwargs), self.planned
        (keys, values), scale = ran["paged_kv_cache"], plan["sm_scale"] or LAYOUT.head_dim**-0.5
        if "qo_indptr" in plan:
            starts = (plan["qo_indptr"], plan["paged_kv_indptr"], plan["paged_kv_indices"])
        else:
            starts = (plan["indptr"], plan["indices"])
        references = pytest.importorskip("flashinfer.trace.templates.attention")
        out, _ = getattr(references, self.reference)(ran["q"], keys, values, *starts, scale)
        return out.float()


@pytest.fixture
def backend(flashinfer, monkeypatch):
    """A FlashInfer backend on the CPU whose wrappers check and compute with the library's own Python."""

    def stand_in(name, reference):
        real = getattr(flashinfer, name)
        return lambda *args, **kwargs: Bound(real, reference, *args, **kwargs)

    wrappers = SimpleNamespace(
        BatchPrefillWithPagedKVCacheWrapper=stand_in(
            "BatchPrefillWithPagedKVCacheWrapper", "_gqa_paged_prefill_reference"
        ),
        BatchDecodeWithPagedKVCacheWrapper=stand_in(
            "BatchDecodeWithPagedKVCacheWrapper", "_gqa_paged_decode_reference"
        ),
    )
    monkeypatch.setattr(flashinfer_backend, "_library", lambda layout, device, dtype: wrappers)
    monkeypatch.setattr(flashinfer_backend, "_WORKSPACE_BYTES", 16)
    return _made(FlashInferAttention)


def _made(kind):
    return kind(LAYOUT, pages=12, page_size=PAGE, device=torch.device("cpu"), dtype=torch.float32)


def _step(backend, spans, scale=None):
    """A step over a pool of fixed random content; a fixed seed makes the tokens the same for every backend."""
    random = torch.Generator().manual_seed(3)
    backend.pool.copy_(torch.randn(backend.pool.shape, generator=random))
    given = [torch.randn(spans[-1].stop, heads, 64, generator=random) for heads in (HEADS, 2, 2)]
    plan = backend.plan(spans)
    backend.begin(plan)
    return backend.run(0, *given, plan, scale=scale)


def _span(start, tokens, pages, cached, kind):
    return Span(start, start + tokens, np.array(pages, np.int64), cached, kind != "full", kind == "decode")


STEPS = {
    "decode": [_span(0, 1, [7, 3], 7, "decode"), _span(1, 1, [5], 3, "decode")],
    "prefill": [_span(0, 6, [7, 3], 2, "causal"), _span(6, 4, [5], 0, "causal"), _span(10, 4, [9, 1, 2], 8, "causal")],
    "mixed": [_span(0, 1, [7, 3], 7, "decode"), _span(1, 6, [4, 8], 2, "causal"), _span(7, 1, [5], 3, "decode")],
}


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_by_the_librarys_references_equals_the_torch_backend(backend, step, scale):
    expected = _step(_made(TorchAttention), STEPS[step], scale)
    torch.testing.assert_close(_step(backend, STEPS[step], scale), expected, atol=1e-2, rtol=1e-2)


def test_a_full_step_binds_and_asks_for_no_mask(backend):
    spans = [_span(0, 4, [7], 0, "full"), _span(4, 3, [2, 6], 4, "full")]
    plan = backend.plan(spans)
    backend.begin(plan)
    wrapper = plan.wrappers.wrapper(plan.groups[0], flashinfer_backend.Queries(HEADS, None))
    assert wrapper.planned["causal"] is False
    assert wrapper.planned["paged_kv_last_page_len"].tolist() == [4, 3]


def test_a_static_step_binds_with_its_buffers(backend):
    backend.make_static(2, longest=2 * PAGE)
    expected = _step(_made(TorchAttention), STEPS["decode"])
    assert backend.plan(STEPS["decode"]).static
    torch.testing.assert_close(_step(backend, STEPS["decode"]), expected, atol=1e-2, rtol=1e-2)


def test_sequence_lengths_as_the_library_derives_them_are_cached_plus_new_tokens(backend, flashinfer):
    spans = [
        _span(place, tokens, [1, 2, 3, 4], cached, "causal")
        for place, (cached, tokens) in enumerate([(0, 1), (0, 4), (3, 1), (4, 1), (2, 9), (8, 8)])
    ]
    group = backend._group("causal", spans)
    lengths = flashinfer.get_seq_lens(group.page_starts, group.last_page, PAGE)
    assert lengths.tolist() == [span.cached + span.tokens for span in spans]
