import pytest
import torch
import torch.nn.functional as F

from mstar_core.engines.attention.base import KVLayout
from mstar_core.engines.base import BatchLimits, Call, EngineSettings, NodeContext, NodeRequest, Row
from mstar_core.engines.kv_cache import KVCacheEngine
from mstar_core.engines.kv_node import KVNode, token_count
from mstar_core.engines.sampling import SamplerSpec
from mstar_core.engines.segments import Segment
from mstar_core.errors import InvalidRequest
from mstar_core.spec.graph import FLAG, Node, Port

VOCAB, WIDTH, HEADS = 50, 32, 2
PAGE = 4
IDLE = "idle"


class OneLayer(KVNode):
    """A language model of one attention layer with random weights: real enough for every rule of the cache."""

    kv = KVLayout(layers=1, kv_heads=HEADS, head_dim=WIDTH // HEADS)
    samplers = {
        "main": SamplerSpec(
            vocab=VOCAB, temperature="temperature", repetition_penalty="repetition_penalty", history="ids"
        )
    }
    host_outputs = ("ids",)
    run_ahead = ("ids",)

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(VOCAB, WIDTH, generator=generator)
        self.places = torch.randn(512, WIDTH, generator=generator)
        self.mix = torch.randn(WIDTH, 3 * WIDTH, generator=generator) / WIDTH**0.5

    def segments(self, call):
        how = call.inputs.get("how") or {}
        if how == IDLE:
            return ()
        return Segment(tokens=token_count(call.inputs["ids"]), **how)

    def forgets(self, call):
        return call.walk == "anew"

    def metrics(self):
        return {"layers": self.kv.layers}

    def forward(self, step):
        if any(call.request.params.get("explode") for call in step.calls):
            raise RuntimeError("told to")
        ids = step.tokens("ids")
        states = self.embedding[ids] + self.places[step.positions]
        q, k, v = (states @ self.mix).view(-1, 3, HEADS, WIDTH // HEADS).unbind(1)
        out = step.attend(0, q, k, v).flatten(1)
        logits = step.last(out) @ self.embedding.T
        return {"ids": step.sample(logits, "main"), "logits": logits}

    def finish(self, call, row):
        return {"stop": row["ids"] == 0}

    def dense(self, ids):
        """The logits after `ids`, without a cache."""
        states = self.embedding[torch.tensor(ids)] + self.places[: len(ids)]
        q, k, v = (states @ self.mix).view(-1, 3, HEADS, WIDTH // HEADS).unbind(1)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True
        ).transpose(0, 1)
        return out.flatten(1)[-1] @ self.embedding.T


def make_engine(tokens=256, requests=16):
    node = Node(
        name="lm",
        engine="kv_cache",
        inputs=(Port("ids", "int64", ("n",), tokens=0), Port("how", sparse=True)),
        outputs=(Port("ids", "int64", ()), Port("logits", "float32", ("vocab",)), Port("stop", FLAG)),
        factory="unused:here",
    )
    context = NodeContext(node=node, config=None, checkpoint=None, device=torch.device("cpu"), dtype=torch.float32)
    settings = EngineSettings(requests=requests, kv_tokens=tokens, page_tokens=PAGE)
    return KVCacheEngine.build(OneLayer(), context, settings)


class Driver:
    """Runs calls through an engine as a worker does, one batch at a time."""

    def __init__(self, engine, tokens=2048, requests=16):
        self.engine = engine
        self.limits = BatchLimits(requests=requests, tokens=tokens)
        self.keys = iter(range(1, 1000))

    def open(self, seed=0, **params):
        request = NodeRequest(next(self.keys), {"temperature": 0.0, "repetition_penalty": 1.0, **params}, seed)
        self.engine.open(request)
        return request

    def call(self, request, ids, how=None, walk="walk"):
        value = ids if isinstance(ids, Row) else torch.tensor(ids)
        call = Call(request, walk, {"ids": value, "how": how}, request.runs)
        request.runs += 1
        return call

    def run(self, *calls):
        """Every call to its end; their outcomes in order."""
        outcomes, waiting = {}, list(calls)
        while waiting:
            batch = self.engine.collect("walk", waiting, self.limits)
            assert batch is not None, "nothing can run and nothing is in flight"
            self.engine.run(batch)
            for call, outcome in zip(batch.calls, self.engine.finish(batch), strict=True):
                if outcome is not None:
                    outcomes[call] = outcome
                    waiting.remove(call)
            self.engine.check_integrity()
        return [outcomes[call] for call in calls]

    def generate(self, prompts, count, **params):
        """`count` ids after each prompt, all prompts together."""
        requests = [self.open(seed=index + 1, **params) for index in range(len(prompts))]
        texts = [list(prompt) for prompt in prompts]
        inputs = prompts
        for _ in range(count):
            calls = [self.call(request, ids) for request, ids in zip(requests, inputs, strict=True)]
            inputs = [outcome["ids"] for outcome in self.run(*calls)]
            for text, row in zip(texts, inputs, strict=True):
                text.append(int(row.tensor()))
        for request in requests:
            self.engine.close(request)
        assert self.engine.store.allocator.used == 0
        return texts


def logits(outcome):
    return outcome["logits"].tensor()


@pytest.mark.parametrize("length", [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE])
def test_decode_after_prefill_equals_the_dense_computation(length):
    driver = Driver(make_engine())
    request = driver.open()
    ids = [(7 * place + 3) % VOCAB for place in range(length)]
    (outcome,) = driver.run(driver.call(request, ids))
    torch.testing.assert_close(logits(outcome), driver.engine.node.dense(ids))
    for token in (5, 9, 11, 2, 8):
        ids.append(token)
        (outcome,) = driver.run(driver.call(request, [token]))
        torch.testing.assert_close(logits(outcome), driver.engine.node.dense(ids))


def test_requests_decode_the_same_ids_alone_and_together():
    prompts = [[index + 1] * (index % 5 + 1) for index in range(8)]
    together = Driver(make_engine()).generate(prompts, 20, temperature=1.0)
    alone = []
    for index, prompt in enumerate(prompts):
        driver = Driver(make_engine())
        request = driver.open(seed=index + 1, temperature=1.0)
        text, ids = list(prompt), prompt
        for _ in range(20):
            (outcome,) = driver.run(driver.call(request, ids))
            ids = outcome["ids"]
            text.append(int(ids.tensor()))
        alone.append(text)
    assert together == alone


def test_a_prefill_cut_into_chunks_gives_the_same_result():
    ids = [(11 * place) % VOCAB for place in range(37)]
    whole = Driver(make_engine(), tokens=2048)
    (expected,) = whole.run(whole.call(whole.open(), ids))
    for tokens in (5, 8, 36):
        cut = Driver(make_engine(), tokens=tokens)
        call = cut.call(cut.open(), ids)
        (outcome,) = cut.run(call)
        torch.testing.assert_close(logits(outcome), logits(expected))
        assert call.tokens == 37


def test_when_pages_run_out_requests_wait_or_are_parked_and_all_end_with_the_same_ids():
    prompts = [[index + 1, 3, 5, 7, 9] for index in range(6)]
    roomy = Driver(make_engine(tokens=512)).generate(prompts, 30, temperature=0.8)
    tight = Driver(make_engine(tokens=60)).generate(prompts, 30, temperature=0.8)
    assert tight == roomy


def test_a_request_larger_than_the_pool_fails_with_the_numbers_and_harms_nobody():
    driver = Driver(make_engine(tokens=16))
    big, small = driver.open(), driver.open()
    outcomes = driver.run(driver.call(big, list(range(40))), driver.call(small, [1, 2, 3]))
    assert isinstance(outcomes[0], InvalidRequest)
    assert "40 tokens" in str(outcomes[0])
    assert "16" in str(outcomes[0])
    torch.testing.assert_close(logits(outcomes[1]), driver.engine.node.dense([1, 2, 3]))


def test_a_dropped_call_leaves_cache_and_history_as_they_were():
    driver = Driver(make_engine())
    request = driver.open(repetition_penalty=5.0)
    (first,) = driver.run(driver.call(request, [1, 2, 3]))
    expected_history = driver.engine.samplers["main"].history.clone()
    call = driver.call(request, first["ids"])
    batch = driver.engine.collect("walk", [call], driver.limits)
    driver.engine.run(batch)
    driver.engine.drop(batch, call)
    assert driver.engine.finish(batch) == [None]
    request.runs -= 1
    driver.engine.check_integrity()
    (again,) = driver.run(driver.call(request, [4]))
    torch.testing.assert_close(logits(again), driver.engine.node.dense([1, 2, 3, 4]))
    history = driver.engine.samplers["main"].history.clone()
    history[1, 4] -= 1
    history[1, int(again["ids"].tensor())] -= 1
    assert torch.equal(history, expected_history)


@pytest.mark.parametrize("tokens", [2048, 2])
def test_a_call_that_forgets_begins_a_new_history_once_however_it_is_cut(tokens):
    driver = Driver(make_engine(), tokens=tokens)
    request = driver.open(repetition_penalty=5.0)
    driver.run(driver.call(request, [1, 2, 3]))
    (outcome,) = driver.run(driver.call(request, [4, 5, 6], walk="anew"))
    history = driver.engine.samplers["main"].history[1]
    assert set(history.nonzero().flatten().tolist()) == {4, 5, 6, int(outcome["ids"].tensor())}


def test_a_nodes_own_gauges_stand_beside_the_engines():
    assert make_engine().metrics().keys() >= {"kv_pages", "layers"}


def test_a_batch_may_be_collected_on_rows_that_are_not_computed_yet():
    driver = Driver(make_engine())
    request = driver.open()
    first = driver.engine.collect("walk", [driver.call(request, [1, 2, 3])], driver.limits)
    ahead = driver.engine.collect("walk", [driver.call(request, Row(first.output, "ids", 0))], driver.limits)
    driver.engine.run(first)
    driver.engine.run(ahead)
    (one,), (two,) = driver.engine.finish(first), driver.engine.finish(ahead)
    expected = driver.engine.node.dense([1, 2, 3, int(one["ids"].tensor())])
    torch.testing.assert_close(logits(two), expected)


def test_a_fork_shares_pages_and_goes_its_own_way():
    driver = Driver(make_engine())
    request = driver.open()
    driver.run(driver.call(request, [1, 2, 3, 4, 5]))
    used = driver.engine.store.allocator.used
    (branch,) = driver.run(driver.call(request, [6], {"sequence": "branch", "fork": "main"}))
    assert driver.engine.store.allocator.used == used + 1, "only the page that is written is copied"
    (main,) = driver.run(driver.call(request, [9]))
    torch.testing.assert_close(logits(branch), driver.engine.node.dense([1, 2, 3, 4, 5, 6]))
    torch.testing.assert_close(logits(main), driver.engine.node.dense([1, 2, 3, 4, 5, 9]))


def test_uncommitted_tokens_see_the_context_and_leave_no_trace():
    driver = Driver(make_engine())
    request = driver.open()
    driver.run(driver.call(request, [1, 2, 3, 4]))
    used = driver.engine.store.allocator.used
    (tried,) = driver.run(driver.call(request, [7, 8], {"commit": False}))
    assert driver.engine.store.allocator.used == used
    (after,) = driver.run(driver.call(request, [5]))
    torch.testing.assert_close(logits(tried), driver.engine.node.dense([1, 2, 3, 4, 7, 8]))
    torch.testing.assert_close(logits(after), driver.engine.node.dense([1, 2, 3, 4, 5]))


def test_truncation_forgets_the_tail():
    driver = Driver(make_engine())
    request = driver.open()
    driver.run(driver.call(request, [1, 2, 3, 4, 5, 6]))
    (outcome,) = driver.run(driver.call(request, [9], {"truncate": 2}))
    torch.testing.assert_close(logits(outcome), driver.engine.node.dense([1, 2, 9]))


def test_tokens_of_a_full_segment_see_each_other():
    driver = Driver(make_engine())
    (causal,) = driver.run(driver.call(driver.open(), [1, 2, 3]))
    request = driver.open()
    (full,) = driver.run(driver.call(request, [1, 2, 3], {"mask": "full"}))
    torch.testing.assert_close(logits(causal), logits(full))  # the last token sees all either way
    (next_causal,) = driver.run(driver.call(request, [4]))
    torch.testing.assert_close(logits(next_causal), driver.engine.node.dense([1, 2, 3, 4]))


class Ragged(OneLayer):
    """Gives a value for every token, and goes on before the host has seen it."""

    host_outputs = ()
    run_ahead = ("states",)

    def segments(self, call):
        return [Segment(tokens=3, sequence=name, mask="full") for name in "abcd"]

    def forward(self, step):
        states = self.embedding[step.tokens("ids")]
        q, k, v = (states @ self.mix).view(-1, 3, HEADS, WIDTH // HEADS).unbind(1)
        return {"states": step.split(step.attend(0, q, k, v).flatten(1))}

    def finish(self, call, row):
        return {}


def test_a_cut_call_keeps_its_outputs_when_the_next_begins_before_it_is_finished():
    node = Node(
        name="lm",
        engine="kv_cache",
        inputs=(Port("ids", "int64", ("n",), tokens=0),),
        outputs=(Port("states", "float32", ("tokens", WIDTH)),),
        factory="unused:here",
    )
    context = NodeContext(node=node, config=None, checkpoint=None, device=torch.device("cpu"), dtype=torch.float32)
    engine = KVCacheEngine.build(Ragged(), context, EngineSettings(kv_tokens=256, page_tokens=PAGE))
    request = NodeRequest(1, {"temperature": 0.0, "repetition_penalty": 1.0}, 0)
    engine.open(request)
    calls = [Call(request, "walk", {"ids": torch.arange(12)}, step) for step in range(2)]
    limits = BatchLimits(tokens=6)  # two segments of the four

    def ran(call):
        batch = engine.collect("walk", [call], limits)
        engine.run(batch)
        return batch

    first = ran(calls[0])
    assert engine.finish(first) == [None]
    last = ran(calls[0])
    ahead = ran(calls[1])  # its first part has run before the first call is finished
    (outputs,) = engine.finish(last)
    assert outputs["states"].tensor().shape == (12, WIDTH)
    assert engine.finish(ahead) == [None]
    (outputs,) = engine.finish(ran(calls[1]))
    assert outputs["states"].tensor().shape == (12, WIDTH)


def test_a_call_without_segments_does_nothing_and_has_no_outputs():
    driver = Driver(make_engine())
    alone, beside = driver.open(), driver.open()
    driver.run(driver.call(beside, [1, 2]))
    nothing, after = driver.run(driver.call(alone, [1], IDLE), driver.call(beside, [3]))
    assert nothing == {}
    torch.testing.assert_close(logits(after), driver.engine.node.dense([1, 2, 3]))
    assert driver.engine.store.held(alone.key) == 0
    assert driver.run(driver.call(alone, [1], IDLE)) == [{}]
