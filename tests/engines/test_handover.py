import random

import msgspec
import pytest
import torch

from mstar_core.engines.attention.base import KVLayout
from mstar_core.engines.base import (
    BatchLimits,
    Call,
    EngineSettings,
    Handover,
    NodeContext,
    NodeRequest,
    Row,
)
from mstar_core.engines.kv_cache import KVCacheEngine
from mstar_core.engines.kv_node import KVNode, token_count
from mstar_core.engines.sampling import SamplerSpec
from mstar_core.engines.segments import Segment
from mstar_core.errors import NodeFailed
from mstar_core.spec.graph import Node, Port

VOCAB, LAYERS, HEADS, SIZE = 50, 2, 2, 16
WIDTH = HEADS * SIZE
PAGE = 4
LENGTHS = [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE]


class Writer(KVNode):
    """Two layers of attention with random weights; keeps, per request, the ids that it wrote."""

    kv = KVLayout(layers=LAYERS, kv_heads=HEADS, head_dim=SIZE)
    samplers = {
        "main": SamplerSpec(vocab=VOCAB, temperature="temperature", repetition_penalty="penalty", history="ids")
    }
    host_outputs = ("ids",)
    run_ahead = ("ids",)

    def __init__(self, context):
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(VOCAB, WIDTH, generator=generator).to(context.dtype)
        self.places = torch.randn(512, WIDTH, generator=generator).to(context.dtype)
        self.mix = (torch.randn(LAYERS, WIDTH, 3 * WIDTH, generator=generator) / WIDTH**0.5).to(context.dtype)

    def open(self, request):
        return []

    def pack(self, request):
        return list(request.state)

    def unpack(self, request, packed):
        return list(packed)

    def segments(self, call):
        return Segment(tokens=token_count(call.inputs["ids"]), **(call.inputs.get("how") or {}))

    def forward(self, step):
        states = self.embedding[step.tokens("ids")] + self.places[step.positions]
        for layer in range(LAYERS):
            q, k, v = (states @ self.mix[layer]).view(-1, 3, HEADS, SIZE).unbind(1)
            states = states + step.attend(layer, q, k, v).flatten(1)
        logits = step.last(states) @ self.embedding.T
        return {"ids": step.sample(logits, "main"), "logits": logits}

    def finish(self, call, row):
        call.request.state.append(row["ids"])
        return {}


class Forgetful(Writer):
    """Keeps state, and does not say how it travels."""

    pack = KVNode.pack
    unpack = KVNode.unpack


class Site:
    """A worker's engine, driven one batch at a time."""

    def __init__(self, pages=64, page=PAGE, dtype=torch.float32, kind=Writer, budget=2048):
        node = Node(
            name="lm",
            engine="kv_cache",
            inputs=(Port("ids", "int64", ("n",), tokens=0), Port("how", sparse=True)),
            outputs=(Port("ids", "int64", ()), Port("logits", "float32", ("vocab",))),
            factory=kind,
        )
        context = NodeContext(node=node, config=None, checkpoint=None, device=torch.device("cpu"), dtype=dtype)
        settings = EngineSettings(requests=2, kv_tokens=pages * page, page_tokens=page, batch=BatchLimits(requests=2))
        self.engine = KVCacheEngine.build(kind(context), context, settings)
        self.limits = BatchLimits(tokens=budget)

    @property
    def used(self):
        return self.engine.store.allocator.used

    def open(self, key=1, **params):
        request = NodeRequest(key, {"temperature": 0.0, "penalty": 1.0, **params}, seed=key)
        self.engine.open(request)
        return request

    def collect(self, *calls):
        batch = self.engine.collect("walk", calls, self.limits)
        assert batch is not None, "nothing can run and nothing is in flight"
        return batch

    def run(self, *calls):
        """Every call to its end; per call the id that it gave, and its logits."""
        outcomes, waiting = {}, list(calls)
        while waiting:
            batch = self.collect(*waiting)
            self.engine.run(batch)
            for call, outcome in zip(batch.calls, self.engine.finish(batch), strict=True):
                if isinstance(outcome, Exception):
                    raise outcome
                if outcome is not None:
                    outcomes[call] = int(outcome["ids"].tensor()), outcome["logits"].tensor().clone()
                    waiting.remove(call)
            self.engine.check_integrity()
        return [outcomes[call] for call in calls]

    def write(self, request, ids, count, first=0, **how):
        """`count` ids, beginning with those after `ids`; `first` is the number of the request's first call here."""
        made = []
        for step in range(count):
            ((token, logits),) = self.run(call(request, ids, first + step, **how))
            made.append((token, logits))
            ids = [token]
        return made

    def leave(self, request):
        batch = self.engine.leave(request)
        self.engine.check_integrity()
        self.engine.run(batch)
        return self.engine.left(batch)

    def send(self, request, other, there):
        """Hand a request over; it is `there` on the other site."""
        other.engine.enter(there, copied(self.leave(request)))
        other.engine.check_integrity()

    def cached(self, request):
        """All that the engine holds for a request whose sequences are on pages, by sequence, and its history."""
        sequences = self.engine.store.sequences(request.key)
        (history,) = (sampler.history for sampler in self.engine.samplers.values())
        return {
            name: (each.length, each.position, self.engine.backend.save_pages(each.pages))
            for name, each in sequences.items()
        }, history[self.engine.residents.by_key[request.key].slot].clone()


def call(request, ids, step, **how):
    return Call(request, "walk", {"ids": ids if isinstance(ids, Row) else torch.tensor(ids), "how": how}, step)


def prompt(length):
    return [(7 * place + 3) % VOCAB for place in range(length)]


def copied(handover):
    """What arrives: the same by value, tensors slice by slice, and nothing of it shared."""
    return Handover(
        msgspec.msgpack.decode(msgspec.msgpack.encode(handover.state)),
        {name: torch.stack([_copied(row) for row in tensor]) for name, tensor in handover.tensors.items()},
    )


def _copied(tensor):
    assert tensor.is_contiguous()
    octets = bytearray(tensor.view(torch.uint8).numpy().tobytes())
    return torch.frombuffer(octets, dtype=tensor.dtype).view(tensor.shape)


def assert_same_writing(ours, theirs):
    assert [token for token, _ in ours] == [token for token, _ in theirs]
    assert all(torch.equal(mine, other) for (_, mine), (_, other) in zip(ours, theirs, strict=True))


def assert_same_cache(ours, theirs):
    sequences, history = ours
    others, other_history = theirs
    assert sequences.keys() == others.keys()
    for name, (length, position, pages) in sequences.items():
        assert (length, position) == others[name][:2]
        assert torch.equal(pages, others[name][2])
    assert torch.equal(history, other_history)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "penalty": 1.3}], ids=["greedy", "penalised"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_request_that_was_handed_over_goes_on_as_if_it_had_stayed(length, params, dtype):
    alone, first, second = Site(dtype=dtype), Site(dtype=dtype), Site(dtype=dtype, pages=32)
    stayed, here = alone.open(**params), first.open(**params)
    second.open(key=9)
    there = second.open(**params)
    ((token, logits),) = alone.write(stayed, prompt(length), 1)
    assert_same_writing(first.write(here, prompt(length), 1), [(token, logits)])
    first.send(here, second, there)
    assert first.used == 0
    assert here.state is None
    expected = alone.write(stayed, [token], 9, first=1)
    assert_same_writing(second.write(there, [token], 9, first=1), expected)
    assert_same_cache(second.cached(there), alone.cached(stayed))
    assert there.state == stayed.state


def test_pages_that_sequences_share_are_sent_once_and_shared_again():
    alone, first, second = Site(), Site(), Site()
    requests = []
    for site in (alone, first):
        request = site.open()
        site.write(request, prompt(2 * PAGE + 1), 1)
        site.write(request, [6], 1, first=1, sequence="branch", fork="main")
        site.write(request, [8, 9], 1, first=2, sequence="other", fork="branch", next_position=40)
        requests.append(request)
    stayed, here = requests
    held, there = first.used, second.open()
    handover = first.leave(here)
    assert handover.tensors["pages"].shape[0] == held < 3 * 3
    second.engine.enter(there, copied(handover))
    for step, name in enumerate(("main", "branch", "other", "main"), start=3):
        ours, expected = (
            site.write(request, [step], 1, first=step, sequence=name)
            for site, request in ((second, there), (alone, stayed))
        )
        assert_same_writing(ours, expected)
    assert_same_cache(second.cached(there), alone.cached(stayed))
    assert second.used == alone.used


def test_the_first_call_after_a_handover_may_fork_in_the_middle_of_a_page():
    alone, first, second = Site(), Site(), Site()
    stayed, here, there = alone.open(), first.open(), second.open()
    for site, request in ((alone, stayed), (first, here)):
        site.write(request, prompt(PAGE + 1), 1)
    first.send(here, second, there)
    for site, request in ((alone, stayed), (second, there)):
        site.write(request, [6], 1, first=1, sequence="branch", fork="main")
    assert_same_cache(second.cached(there), alone.cached(stayed))


def test_a_request_goes_back_and_forth():
    alone, first, second = Site(), Site(), Site()
    stayed = alone.open(penalty=1.3)
    expected = alone.write(stayed, prompt(PAGE + 1), 9)
    here, there = first.open(penalty=1.3), second.open(penalty=1.3)
    made = first.write(here, prompt(PAGE + 1), 3)
    first.send(here, second, there)
    made += second.write(there, [made[-1][0]], 3, first=3)
    second.send(there, first, here)
    made += first.write(here, [made[-1][0]], 3, first=6)
    assert_same_writing(made, expected)
    assert_same_cache(first.cached(here), alone.cached(stayed))
    assert second.used == 0


def test_what_entered_may_leave_again_before_any_call():
    alone, first, second, third = Site(), Site(), Site(), Site()
    stayed, here, there, further = (site.open(penalty=1.3) for site in (alone, first, second, third))
    expected = alone.write(stayed, prompt(PAGE + 1), 4)
    made = first.write(here, prompt(PAGE + 1), 1)
    first.send(here, second, there)
    second.send(there, third, further)
    made += third.write(further, [made[-1][0]], 3, first=1)
    assert_same_writing(made, expected)
    assert_same_cache(third.cached(further), alone.cached(stayed))


def test_a_request_without_a_token_leaves_and_enters():
    first, second = Site(), Site()
    here, there = first.open(penalty=1.3), second.open(penalty=1.3)
    handover = first.leave(here)
    assert "pages" not in handover.tensors
    second.engine.enter(there, copied(handover))
    alone = Site()
    expected = alone.write(alone.open(penalty=1.3), prompt(5), 3)
    assert_same_writing(second.write(there, prompt(5), 3), expected)


def test_a_sequence_that_was_emptied_goes_on_from_nothing():
    def emptied(site):
        request = site.open()
        site.write(request, prompt(3), 1)
        site.write(request, [5], 1, first=1, truncate=0, commit=False)
        return request

    alone, first, second = Site(), Site(), Site()
    stayed, here, there = emptied(alone), emptied(first), second.open()
    first.send(here, second, there)
    expected = alone.write(stayed, prompt(4), 2, first=2)
    assert_same_writing(second.write(there, prompt(4), 2, first=2), expected)
    assert_same_cache(second.cached(there), alone.cached(stayed))


def test_a_parked_request_leaves_as_well():
    alone, first, second = Site(), Site(pages=6), Site()
    stayed = alone.open(key=2, penalty=1.3)
    expected = alone.write(stayed, prompt(3 * PAGE), 4)
    older, here = first.open(key=1), first.open(key=2, penalty=1.3)
    made = first.write(here, prompt(3 * PAGE), 1)
    first.write(older, prompt(5 * PAGE), 1)
    assert first.engine.metrics()["kv_requests_parked"] == 1
    there = second.open(key=2, penalty=1.3)
    first.send(here, second, there)
    assert first.engine.metrics()["kv_requests_parked"] == 0
    made += second.write(there, [made[-1][0]], 3, first=1)
    assert_same_writing(made, expected)
    assert_same_cache(second.cached(there), alone.cached(stayed))


def test_a_request_that_enters_a_full_pool_waits_for_an_older_one():
    alone, first, second = Site(), Site(), Site(pages=6)
    expected = alone.write(alone.open(key=2), prompt(3 * PAGE), 2)
    older = second.open(key=1)
    here, there = first.open(key=2), second.open(key=2)
    ((token, _),) = first.write(here, prompt(3 * PAGE), 1)
    ((last, _),) = second.write(older, prompt(4 * PAGE - 1), 1)
    first.send(here, second, there)
    batch = second.collect(call(older, [last], 1), call(there, [token], 1))
    assert [each.request for each in batch.calls] == [older]
    second.engine.run(batch)
    second.engine.finish(batch)
    second.engine.close(older)
    assert_same_writing(second.write(there, [token], 1, first=1), expected[1:])


def test_a_request_that_enters_a_full_pool_lets_a_younger_one_be_parked():
    alone, first, second = Site(), Site(), Site(pages=6)
    stayed, young = alone.open(key=1), alone.open(key=2)
    expected = alone.write(stayed, prompt(3 * PAGE), 3), alone.write(young, prompt(4 * PAGE), 3)
    here, there = first.open(key=1), second.open(key=1)
    younger = second.open(key=2)
    made = first.write(here, prompt(3 * PAGE), 1), second.write(younger, prompt(4 * PAGE), 1)
    first.send(here, second, there)
    made[0].extend(second.write(there, [made[0][-1][0]], 1, first=1))
    assert second.engine.metrics()["kv_requests_parked"] == 1
    made[1].extend(second.write(younger, [made[1][-1][0]], 2, first=1))
    made[0].extend(second.write(there, [made[0][-1][0]], 1, first=2))
    assert_same_writing(made[0], expected[0])
    assert_same_writing(made[1], expected[1])


def test_pages_may_be_taken_again_before_the_device_has_saved_them():
    alone, first, second = Site(), Site(pages=6), Site()
    expected = [alone.write(alone.open(key=key, penalty=1.3), prompt(2 * PAGE + key), 2) for key in (1, 2, 3)]
    one, two, three = (first.open(key=key, penalty=1.3) for key in (1, 2, 3))
    ((token, logits),) = first.write(one, prompt(2 * PAGE + 1), 1)
    before = first.collect(call(two, prompt(2 * PAGE + 2), 0))
    leaving = first.engine.leave(one)
    behind = first.collect(call(three, prompt(2 * PAGE + 3), 0))
    assert first.used == 6, "the pages of the one that left are another's already"
    for batch in (before, leaving, behind):
        first.engine.run(batch)
    (second_outcome,), (third_outcome,) = first.engine.finish(before), first.engine.finish(behind)
    assert int(second_outcome["ids"].tensor()) == expected[1][0][0]
    assert int(third_outcome["ids"].tensor()) == expected[2][0][0]
    there = second.open(key=1, penalty=1.3)
    second.engine.enter(there, copied(first.engine.left(leaving)))
    made = [(token, logits), *second.write(there, [token], 1, first=1)]
    assert_same_writing(made, expected[0])


def test_the_batch_of_one_that_leaves_does_what_was_queued_for_others_first():
    first, second = Site(), Site()
    one, two = first.open(key=1, penalty=5.0), first.open(key=2, penalty=5.0)
    first.write(one, prompt(3), 1)
    ((token, _),) = first.write(two, prompt(4), 1)
    before = first.cached(two)
    dropped = call(two, [token], 1)
    batch = first.collect(dropped)
    first.engine.run(batch)
    first.engine.drop(batch, dropped)
    there = second.open(key=1, penalty=5.0)
    first.send(one, second, there)
    assert first.cached(two)[0]["main"][:2] == before[0]["main"][:2]
    assert torch.equal(first.cached(two)[1], before[1])


def test_histories_stay_the_requests_own_while_tables_grow():
    first, second = Site(), Site()
    here = first.open(penalty=1.3)
    ((token, _),) = first.write(here, prompt(5), 1)
    handover = copied(first.leave(here))
    for key in range(2, 8):
        second.open(key=key, penalty=1.3)
    there = second.open(penalty=1.3)
    second.engine.enter(there, handover)
    alone = Site()
    expected = alone.write(alone.open(penalty=1.3), prompt(5), 4)
    assert_same_writing(second.write(there, [token], 3, first=1), expected[1:])


@pytest.mark.parametrize("seed", range(4))
def test_requests_that_hop_between_two_tight_pools_write_what_they_write_on_one_large_pool(seed):
    chance = random.Random(seed)
    keys = range(1, 7)
    settings = {key: {"temperature": 0.8 * (key % 2), "penalty": 1.0 + 0.2 * (key % 3)} for key in keys}
    alone = Site(pages=256)
    expected = {key: alone.write(alone.open(key=key, **settings[key]), prompt(key + 2), 24) for key in keys}
    sites = [Site(pages=12), Site(pages=15)]
    requests = [{key: site.open(key=key, **settings[key]) for key in keys} for site in sites]
    where = dict.fromkeys(keys, 0)
    made = {key: [] for key in keys}
    inputs = {key: prompt(key + 2) for key in keys}
    for step in range(24):
        for place, site in enumerate(sites):
            turn = [key for key in keys if where[key] == place and len(made[key]) == step]
            outcomes = site.run(*(call(requests[place][key], inputs[key], step) for key in turn))
            for key, (token, logits) in zip(turn, outcomes, strict=True):
                made[key].append((token, logits))
                inputs[key] = [token]
        for key in keys:
            if chance.random() < 0.3:
                here = where[key]
                sites[here].send(requests[here][key], sites[1 - here], requests[1 - here][key])
                where[key] = 1 - here
    for key in keys:
        assert [token for token, _ in made[key]] == [token for token, _ in expected[key]]
        assert requests[where[key]][key].state == [token for token, _ in made[key]]
    for place, site in enumerate(sites):
        for request in requests[place].values():
            site.engine.close(request)
        assert site.used == 0
        site.engine.check_integrity()


def test_a_request_cannot_leave_in_the_middle_of_a_prefill_or_of_a_call():
    site = Site(budget=4)
    request = site.open()
    long = call(request, prompt(6), 0)
    batch = site.collect(long)
    with pytest.raises(AssertionError, match="in flight"):
        site.engine.leave(request)
    site.engine.run(batch)
    assert site.engine.finish(batch) == [None]
    with pytest.raises(AssertionError, match="middle of a prefill"):
        site.engine.leave(request)
    site.run(long)
    site.leave(request)
    assert site.used == 0


@pytest.mark.parametrize(
    ("other", "found"),
    [({"page": 8}, "page_tokens 4 there and 8 here"), ({"dtype": torch.bfloat16}, "float32 there and bfloat16 here")],
)
def test_pages_of_another_kind_are_refused_with_the_difference_and_nothing_changes(other, found):
    first, second = Site(), Site(**other)
    here, there = first.open(), second.open()
    first.write(here, prompt(5), 1)
    with pytest.raises(NodeFailed, match=found):
        second.engine.enter(there, copied(first.leave(here)))
    second.engine.check_integrity()
    assert there.state == []
    assert second.engine.metrics()["kv_requests_parked"] == 0


def test_a_node_whose_state_cannot_be_packed_keeps_its_request_and_says_what_to_do():
    site, plain = Site(kind=Forgetful), Site()
    request, same = site.open(), plain.open()
    ours, theirs = site.write(request, prompt(5), 1), plain.write(same, prompt(5), 1)
    with pytest.raises(NodeFailed, match=r"Forgetful .* must implement pack and unpack"):
        site.engine.leave(request)
    token = ours[0][0]
    ours, theirs = site.write(request, [token], 2, first=1), plain.write(same, [token], 2, first=1)
    assert_same_writing(ours, theirs)
