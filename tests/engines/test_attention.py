"""One specification for every attention backend: paged attention equals dense attention over each sequence.

FlashInfer's kernels need a GPU. What surrounds them (groups, page tables, buffers) is tested here on the CPU as well,
with `DensePrefill` and `DenseDecode` in the place of the library's wrappers: they compute what the library documents,
from the tables alone.
"""

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mstar_core.engines.attention import flashinfer_backend, make_backend
from mstar_core.engines.attention.base import KVLayout, Span
from mstar_core.engines.kernels import COMPILERS
from mstar_core.errors import ConfigurationError

LAYERS, KV_HEADS, HEAD_DIM, PAGE = 2, 2, 64, 16
LAYOUT = KVLayout(layers=LAYERS, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
BORDERS = [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}

HAS_GPU = torch.cuda.is_available() and importlib.util.find_spec("flashinfer") is not None
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device and FlashInfer")]
with_compiler = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="needs a C++ compiler")
BACKENDS = [
    pytest.param(("torch", "cpu", torch.float32), id="torch-fp32"),
    pytest.param(("torch", "cpu", torch.bfloat16), id="torch-bf16"),
    pytest.param(("compiled", "cpu", torch.float32), id="compiled-fp32", marks=with_compiler),
    pytest.param(("compiled", "cpu", torch.bfloat16), id="compiled-bf16", marks=with_compiler),
    pytest.param(("dense", "cpu", torch.float32), id="flashinfer-tables"),
    pytest.param(("flashinfer", "cuda", torch.bfloat16), id="flashinfer", marks=on_gpu),
]


class DenseWrapper:
    """What both wrappers of the library share: tables in, dense attention over each request's pages out."""

    def __init__(self, workspace, kv_layout, use_cuda_graph=False):
        assert kv_layout == "NHD"
        self.fixed = None
        self.use_cuda_graph = use_cuda_graph

    def keep(self, starts, tables, sizes, causal, sm_scale):
        assert all(table.dtype == torch.int32 for table in (starts, *tables))
        self.starts, self.sizes, self.causal, self.scale = starts.clone(), sizes, causal, sm_scale
        if self.fixed is None:
            self.tables = tuple(table.clone() for table in tables)
            return
        for buffer, table in zip(self.fixed, tables, strict=True):
            assert len(table) <= len(buffer)
            buffer[: len(table)] = table
        self.tables = self.fixed

    def run(self, queries, cache):
        keys, values = cache
        heads, kv_heads, head_dim, page_size = self.sizes
        assert queries.shape == (self.starts[-1], heads, head_dim)
        assert keys.shape[1:] == values.shape[1:] == (page_size, kv_heads, head_dim)
        page_starts, pages, last_page = self.tables
        parts = []
        for request, last in enumerate(last_page.tolist()):
            used = pages[page_starts[request] : page_starts[request + 1]].long()
            length = (len(used) - 1) * page_size + last
            asked = queries[self.starts[request] : self.starts[request + 1]]
            seen = [half[used].flatten(0, 1)[:length] for half in (keys, values)]
            parts.append(dense(asked, *seen, causal=self.causal, scale=self.scale))
        return torch.cat(parts)


class DensePrefill(DenseWrapper):
    def plan(self, starts, page_starts, pages, last_page, *sizes, causal, sm_scale, q_data_type, kv_data_type):
        self.keep(starts, (page_starts, pages, last_page), sizes, causal, sm_scale)


class DenseDecode(DenseWrapper):
    def __init__(
        self,
        workspace,
        kv_layout,
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
    ):
        super().__init__(workspace, kv_layout)
        if use_cuda_graph:
            self.fixed = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)

    def plan(self, page_starts, pages, last_page, *sizes, sm_scale, q_data_type, kv_data_type):
        starts = torch.arange(len(last_page) + 1, dtype=torch.int32)
        self.keep(starts, (page_starts, pages, last_page), sizes, False, sm_scale)


def dense(queries, keys, values, *, causal, scale=None):
    """Attention of the last tokens of one sequence, one head at a time, in float64."""
    tokens, heads, head_dim = queries.shape
    total, kv_heads = keys.shape[:2]
    queries, keys, values = (each.double().cpu() for each in (queries, keys, values))
    mask = torch.ones(tokens, total, dtype=torch.bool)
    if causal:
        mask = mask.tril(total - tokens)
    out = torch.empty(tokens, heads, head_dim, dtype=torch.float64)
    for head in range(heads):
        shared = head // (heads // kv_heads)
        weights = queries[:, head] @ keys[:, shared].T * (scale or head_dim**-0.5)
        out[:, head] = weights.masked_fill(~mask, float("-inf")).softmax(-1) @ values[:, shared]
    return out.float()


@dataclass
class Sequence:
    """A sequence on its own pages, and its keys and values `[layers, 2, tokens, kv_heads, head_dim]`."""

    pages: np.ndarray
    stored: torch.Tensor

    @property
    def length(self):
        return self.stored.shape[2]


class Harness:
    """A backend beside the dense truth."""

    def __init__(self, name, device, dtype, heads=4, page_size=PAGE, pages=64):
        self.backend = make_backend(
            name, LAYOUT, pages=pages, page_size=page_size, device=torch.device(device), dtype=dtype
        )
        self.device, self.dtype, self.heads = device, dtype, heads
        self.random = torch.Generator().manual_seed(5)
        self.free = (np.random.default_rng(5).permutation(pages) + 1).tolist()

    def sequence(self, room=5 * PAGE):
        count = -(-room // self.backend.page_size)
        pages, self.free = self.free[:count], self.free[count:]
        return Sequence(np.array(pages, np.int64), torch.empty(LAYERS, 2, 0, KV_HEADS, HEAD_DIM, dtype=self.dtype))

    def cached(self, tokens):
        """A sequence that holds `tokens` tokens already."""
        sequence = self.sequence()
        if tokens:
            self.step([(sequence, tokens, "causal")])
        return sequence

    def draw(self, tokens, heads):
        return torch.randn(tokens, heads, HEAD_DIM, generator=self.random).to(self.dtype)

    def plan(self, wanted):
        spans, start = [], 0
        for sequence, tokens, kind in wanted:
            spans.append(Span(start, start + tokens, sequence.pages, sequence.length, kind != "full", kind == "decode"))
            start += tokens
        return self.backend.plan(spans)

    def finish(self, wanted, plan, scale=None):
        """Run a planned step; check each layer against dense attention; give the result `[layers, tokens, ...]`."""
        total = sum(tokens for _, tokens, _ in wanted)
        self.backend.begin(plan)
        results, new = [], []
        for layer in range(LAYERS):
            queries, keys, values = (self.draw(total, heads) for heads in (self.heads, KV_HEADS, KV_HEADS))
            sent = (each.to(self.device) for each in (queries, keys, values))
            results.append(self.backend.run(layer, *sent, plan, scale=scale).cpu())
            new.append(torch.stack([keys, values]))
            self._check(wanted, layer, results[-1], queries, new[-1], scale)
        for (sequence, *_), fresh in zip(wanted, self._parts(torch.stack(new), wanted, 2), strict=True):
            sequence.stored = torch.cat([sequence.stored, fresh], 2)
            assert sequence.length <= len(sequence.pages) * self.backend.page_size
        return torch.stack(results)

    def step(self, wanted, scale=None):
        return self.finish(wanted, self.plan(wanted), scale)

    def _parts(self, values, wanted, axis):
        return values.split([tokens for _, tokens, _ in wanted], axis)

    def _check(self, wanted, layer, result, queries, new, scale):
        parts = (self._parts(result, wanted, 0), self._parts(queries, wanted, 0), self._parts(new, wanted, 1))
        for (sequence, _, kind), out, asked, fresh in zip(wanted, *parts, strict=True):
            keys, values = torch.cat([sequence.stored[layer], fresh], 1)
            expected = dense(asked, keys, values, causal=kind != "full", scale=scale)
            tolerance = TOLERANCE[self.dtype]
            torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.fixture
def library(monkeypatch):
    """Dense wrappers in the library's place."""
    wrappers = SimpleNamespace(
        BatchPrefillWithPagedKVCacheWrapper=DensePrefill, BatchDecodeWithPagedKVCacheWrapper=DenseDecode
    )
    monkeypatch.setattr(flashinfer_backend, "_library", lambda layout, device, dtype: wrappers)
    monkeypatch.setattr(flashinfer_backend, "_WORKSPACE_BYTES", 16)


@pytest.fixture(params=BACKENDS)
def made(request):
    """Makes harnesses around the backend under test."""
    name, device, dtype = request.param
    if name == "dense":
        request.getfixturevalue("library")
        name = "flashinfer"
    return lambda **options: Harness(name, device, dtype, **options)


@pytest.mark.parametrize("kind", ["causal", "full"])
@pytest.mark.parametrize("cached", [0, *BORDERS])
@pytest.mark.parametrize("tokens", [1, PAGE - 1, PAGE, PAGE + 1])
def test_prefill_at_page_borders_equals_dense_attention(made, tokens, cached, kind):
    harness = made()
    harness.step([(harness.cached(cached), tokens, kind)])


@pytest.mark.parametrize("cached", [0, *BORDERS])
def test_decode_at_page_borders_equals_dense_attention(made, cached):
    harness = made()
    sequence = harness.cached(cached)
    for _ in range(3):
        harness.step([(sequence, 1, "decode")])


@pytest.mark.parametrize("side_by_side", [True, False])
@pytest.mark.parametrize("cached", [0, *BORDERS])
@pytest.mark.parametrize("tokens", [2 * PAGE, 2 * PAGE + 3])
def test_a_long_full_segment_equals_dense_attention_wherever_its_pages_lie(made, tokens, cached, side_by_side):
    harness = made()
    if side_by_side:
        harness.free.sort()
    sequence = harness.sequence(room=6 * PAGE)
    if cached:
        harness.step([(sequence, cached, "causal")])
    harness.step([(sequence, tokens, "full")])


def test_a_long_full_segment_has_the_same_bits_beside_others_and_on_any_pages():
    def result(neighbours, *, ordered):
        harness = Harness("torch", "cpu", torch.float32, pages=256)
        harness.free = sorted(harness.free) if ordered else harness.free
        wanted = [(harness.cached(21), 40, "full")]
        drawn = harness.random.get_state()
        others = [(harness.cached(cached), tokens, kind) for cached, tokens, kind in neighbours]
        harness.random.set_state(drawn)
        draw = harness.draw
        harness.draw = lambda tokens, heads: torch.cat([draw(40, heads), torch.ones(tokens - 40, heads, HEAD_DIM)])
        return harness.step(wanted + others)[:, :40]

    alone = result([], ordered=True)
    assert torch.equal(result([], ordered=False), alone)
    for neighbours in ([(30, 40, "full")], [(3, 1, "decode"), (0, 9, "causal")], [(30, 50, "full"), (21, 40, "full")]):
        assert torch.equal(result(neighbours, ordered=False), alone)


@pytest.mark.parametrize("page_size", [1, 5, 16])
def test_a_mixed_batch_equals_dense_attention_for_each_sequence(made, page_size):
    harness = made(page_size=page_size, pages=700)
    wanted = [
        (harness.cached(PAGE), 1, "decode"),
        (harness.cached(0), 20, "causal"),
        (harness.cached(33), 9, "full"),
        (harness.cached(47), 1, "decode"),
        (harness.cached(17), PAGE, "causal"),
        (harness.cached(0), 5, "full"),
        (harness.cached(31), 1, "causal"),
    ]
    harness.step(wanted)
    harness.step([(sequence, 1, "decode") for sequence, *_ in wanted])


@pytest.mark.parametrize("kv_groups", [1, 2, 3, 4, 7, 8])
def test_query_heads_that_share_a_key_head_read_the_same_keys(made, kv_groups):
    harness = made(heads=KV_HEADS * kv_groups)
    harness.step([(harness.cached(18), 3, "causal"), (harness.cached(5), 1, "decode"), (harness.cached(5), 4, "full")])
    harness.step([(harness.cached(40), 1, "decode")])


def test_a_scale_that_is_given_replaces_the_default(made):
    harness = made()
    wanted = [(harness.cached(9), 1, "decode"), (harness.cached(9), 7, "causal")]
    harness.step(wanted, scale=0.5)
    harness.step(wanted, scale=None)


def test_tokens_that_were_taken_back_are_overwritten(made):
    harness = made()
    sequence, other = harness.cached(PAGE + 3), harness.cached(2)
    kept = sequence.stored
    for tokens in (2 * PAGE, 7, PAGE + 1):
        harness.step([(sequence, tokens, "full"), (other, 1, "decode")])
        sequence.stored = kept
    harness.step([(sequence, 1, "decode")])


def test_a_page_shared_by_two_sequences_is_read_by_both(made):
    harness = made()
    first = harness.cached(PAGE)
    second = harness.sequence()
    second.pages = np.concatenate([first.pages[:1], second.pages])
    second.stored = first.stored
    harness.step([(first, 3, "causal"), (second, 5, "causal")])
    harness.step([(first, 1, "decode"), (second, 1, "decode")])


def test_a_step_planned_before_the_previous_one_ran_gives_the_same(made):
    harness = made()
    decoding, filling = [harness.cached(length) for length in (3, PAGE, 30)], harness.cached(4)
    waiting, steps = None, [[(sequence, 1, "decode") for sequence in decoding], [(filling, 20, "causal")]] * 3
    for wanted in steps:
        planned = (wanted, harness.plan(wanted))
        if waiting is not None:
            harness.finish(*waiting)
        waiting = planned
    harness.finish(*waiting)


def test_what_a_free_page_holds_is_not_seen(made):
    harness = made()
    harness.backend.pool.fill_(1e4)
    harness.step(
        [(harness.sequence(), 5, "causal"), (harness.sequence(), 1, "decode"), (harness.sequence(), 3, "full")]
    )


def _result_of(chosen, neighbours, first):
    """What one span gets whose sequence, queries, keys and values are the same whatever surrounds it."""
    harness = Harness("torch", "cpu", torch.float32)
    wanted = [(harness.cached(length), tokens, kind) for length, tokens, kind in neighbours]
    harness.random.manual_seed(9)
    cached, tokens, kind = chosen
    place = 0 if first else len(wanted)
    wanted.insert(place, (harness.cached(cached), tokens, kind))
    start, total = sum(count for _, count, _ in wanted[:place]), sum(count for _, count, _ in wanted)
    given = [harness.draw(total, heads) for heads in (harness.heads, KV_HEADS, KV_HEADS)]
    harness.random.manual_seed(11)
    for tensor in given:
        tensor[start : start + tokens] = harness.draw(tokens, tensor.shape[1])
    plan = harness.plan(wanted)
    harness.backend.begin(plan)
    return harness.backend.run(0, *given, plan)[start : start + tokens]


NEIGHBOURS = [
    [(3, 1, "decode")],
    [(0, 30, "causal"), (40, 1, "decode")],
    [(20, 12, "full"), (0, 40, "causal"), (47, 1, "decode"), (9, 1, "decode")],
]


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize(
    "chosen", [(18, 1, "decode"), (0, 13, "causal"), (17, 20, "causal"), (5, 9, "full"), (7, 1, "causal")]
)
@pytest.mark.parametrize("first", [True, False])
def test_a_token_on_the_cpu_does_not_depend_on_its_neighbours_in_any_bit(chosen, neighbours, first):
    alone = _result_of(chosen, [], first)
    assert torch.equal(_result_of(chosen, neighbours, first), alone)


def test_a_static_step_reads_from_buffers_that_stay(library):
    harness = Harness("flashinfer", "cpu", torch.float32)
    harness.backend.make_static(2, longest=3 * PAGE)
    sequences = [harness.cached(2), harness.cached(PAGE)]
    slots = []
    for _ in range(3):
        wanted = [(sequence, 1, "decode") for sequence in sequences]
        plan = harness.plan(wanted)
        assert plan.static
        harness.finish(wanted, plan)
        slots.append(plan.slots)
    assert slots[0] is slots[1] is slots[2]


@pytest.mark.parametrize(
    ("lengths", "kind"), [([3], "decode"), ([3, 4, 5], "decode"), ([3, 4], "causal"), ([60, 60], "decode")]
)
def test_a_step_of_another_shape_or_too_long_is_not_static(library, lengths, kind):
    harness = Harness("flashinfer", "cpu", torch.float32)
    harness.backend.make_static(2, longest=3 * PAGE)
    wanted = [(harness.cached(length), 1, kind) for length in lengths]
    assert not harness.plan(wanted).static
    harness.step(wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device and FlashInfer")
def test_a_captured_decode_step_replays_with_new_tables():
    harness = Harness("flashinfer", "cuda", torch.bfloat16)
    harness.backend.make_static(2, longest=4 * PAGE)
    sequences = [harness.cached(2), harness.cached(PAGE - 1)]
    wanted = [(sequence, 1, "decode") for sequence in sequences]
    harness.step(wanted)
    inputs = [harness.draw(2, heads).cuda() for heads in (harness.heads, KV_HEADS, KV_HEADS)]
    plan = harness.plan(wanted)
    harness.backend.begin(plan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = harness.backend.run(0, *inputs, plan)
    for _ in range(4):
        for tensor in inputs:
            tensor.copy_(harness.draw(*tensor.shape[:2]))
        harness.backend.begin(harness.plan(wanted))
        graph.replay()
        queries, keys, values = (tensor.cpu() for tensor in inputs)
        new = torch.stack([keys, values]).expand(LAYERS, -1, -1, -1, -1)
        harness._check(wanted, 0, out.cpu(), queries, new[0], None)
        for index, sequence in enumerate(sequences):
            sequence.stored = torch.cat([sequence.stored, new[:, :, index : index + 1]], 2)


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "says"),
    [
        ("cpu", torch.bfloat16, 64, "runs on CUDA devices, not on cpu"),
        ("cuda", torch.float32, 64, "not torch.float32"),
        ("cuda", torch.bfloat16, 80, "head sizes (64, 128, 256), not 80"),
    ],
)
def test_flashinfer_for_a_pool_without_kernels_names_the_other_backend(device, dtype, head_dim, says):
    layout = KVLayout(layers=1, kv_heads=1, head_dim=head_dim)
    with pytest.raises(ConfigurationError) as raised:
        make_backend("flashinfer", layout, pages=1, page_size=16, device=torch.device(device), dtype=dtype)
    assert says in str(raised.value)
    assert "use the attention backend 'torch'" in str(raised.value)


def test_flashinfer_where_it_is_not_installed_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'mstar-core\[cuda\]'"):
        make_backend("flashinfer", LAYOUT, pages=1, page_size=16, device=torch.device("cuda"), dtype=torch.bfloat16)
