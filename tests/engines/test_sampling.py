from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_core.engines.sampling import (
    UNMASKED,
    Sampler,
    SamplerRow,
    SamplerSettings,
    SamplerSpec,
    token_logprobs,
    truncated,
)

CPU = torch.device("cpu")
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "penalty": 1.0}


def make(vocab: int, slots: int = 8, masks: torch.Tensor | None = None, draws: int = 1) -> Sampler:
    spec = SamplerSpec(vocab=vocab, repetition_penalty="repetition_penalty", draws=draws)
    return Sampler(spec, purpose=("node", "main"), slots=slots, masks=masks, device=CPU)


def row(seed: int = 0, step: int = 0, slot: int = 0, phase: int = UNMASKED, **changed: float) -> SamplerRow:
    return SamplerRow(SamplerSettings(**(NEUTRAL | changed)), seed, step, slot, phase, True)


def probabilities(sampler: Sampler, logits: torch.Tensor, rows: list[SamplerRow]) -> torch.Tensor:
    """The processed distribution over the vocabulary, `[rows, vocab]`."""
    packed = sampler.rows(rows)
    cut = truncated(sampler.scores(logits, packed).log_softmax(-1), packed, logits.shape[1])
    return torch.zeros(logits.shape, dtype=torch.float64).scatter(1, cut.ids, cut.probabilities / cut.total)


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (50, 0.8, 0.0), (0, 0.8, 0.0), (20, 1.0, 0.05)])
def test_distribution_when_processed_then_equals_that_of_transformers(penalty, top_k, top_p, min_p):
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 500, generator=generator) * 3
    history = torch.randint(0, 500, (3, 40), generator=generator)
    theirs = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(penalty), TemperatureLogitsWarper(0.6)])
    theirs += [TopKLogitsWarper(top_k)] if top_k else []
    theirs += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    theirs += [MinPLogitsWarper(min_p)] if min_p else []
    wanted = theirs(history, logits.clone()).softmax(-1)
    sampler = make(500)
    for slot in range(3):
        sampler.count(torch.full((40,), slot), history[slot], torch.ones(40, dtype=torch.int32))
    chosen = {"temperature": 0.6, "top_k": top_k, "top_p": top_p, "min_p": min_p, "penalty": penalty}
    ours = probabilities(sampler, logits, [row(slot=slot, **chosen) for slot in range(3)])
    assert (ours - wanted).abs().max() < 1e-6


@pytest.mark.golden
def test_distribution_when_reference_recorded_it_then_is_the_same():
    from safetensors.torch import load_file

    path = Path(__file__).parents[2] / "plugins/mstar-orpheus/tests/data/orpheus/cases.safetensors"
    if not path.exists():
        pytest.skip("the Orpheus reference data is not in this checkout")
    cases = load_file(path)
    for name, wanted in cases.items():
        if not name.startswith("sampling/probs_"):
            continue
        _, case, penalty, top_p, top_k = name.split("/")[1].split("_")
        history, logits = cases[f"sampling/history_{case}"], cases[f"sampling/logits_{case}"]
        sampler = make(logits.shape[0])
        sampler.count(torch.zeros_like(history), history, torch.ones_like(history, dtype=torch.int32))
        chosen = {"penalty": float(penalty[3:]), "top_p": float(top_p[1:]), "top_k": int(top_k[1:])}
        ours = probabilities(sampler, logits[None], [row(temperature=0.6, **chosen)])
        assert (ours[0] - wanted).abs().max() < 1e-6, name


def test_penalty_when_a_token_was_seen_often_then_counts_once():
    sampler = make(4)
    sampler.count(torch.zeros(3, dtype=torch.int64), torch.tensor([0, 0, 1]), torch.ones(3, dtype=torch.int32))
    scores = sampler.scores(torch.tensor([[2.0, -2.0, 2.0, -2.0]]), sampler.rows([row(penalty=2.0)]))
    assert scores.tolist() == [[1.0, -4.0, 2.0, -2.0]]


def test_history_when_taken_back_then_is_as_before():
    sampler = make(4)
    ids, slots, one = torch.tensor([3, 3]), torch.tensor([1, 1]), torch.ones(2, dtype=torch.int32)
    sampler.count(slots, ids, one)
    before = sampler.history.clone()
    sampler.count(slots, ids, one)
    sampler.count(slots, ids, -one)
    assert torch.equal(sampler.history, before)


def test_mask_when_a_phase_is_given_then_only_its_tokens_are_drawn():
    masks = torch.zeros(2, 300, dtype=torch.bool)
    masks[0, 7:9] = masks[1, 200:] = True
    sampler = make(300, masks=masks)
    rows = [row(seed=seed, phase=seed % 2, temperature=5.0) for seed in range(40)]
    ids = sampler.sample(torch.randn(40, 300), sampler.rows(rows))
    assert all(masks[seed % 2, token] for seed, token in enumerate(ids.tolist()))


def test_greedy_when_two_tokens_are_equal_then_takes_the_first():
    sampler = make(2000)
    logits = torch.zeros(2, 2000)
    logits[:, [1500, 3, 700]] = 1.0
    assert sampler.sample(logits, sampler.rows([row(temperature=0.0)] * 2)).tolist() == [3, 3]
    mixed = sampler.rows([row(temperature=0.0), row(temperature=1.0)])
    assert sampler.sample(logits, mixed).tolist()[0] == 3


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**63 - 1),
            st.integers(0, 5000),
            st.sampled_from([0.0, 0.5, 1.0, 30.0]),
            st.sampled_from([0, 1, 5, 70, 2500]),
            st.sampled_from([0.1, 0.8, 0.999, 1.0]),
            st.sampled_from([0.0, 0.02]),
        ),
        min_size=2,
        max_size=6,
    ),
    st.booleans(),
)
def test_token_when_drawn_beside_any_neighbours_then_is_that_of_the_row_alone(chosen, ties):
    logits = torch.randn(len(chosen), 3000, generator=torch.Generator().manual_seed(1)) * 2
    logits = logits.round() if ties else logits
    sampler = make(3000)
    rows = [row(seed=seed, step=step, temperature=t, top_k=k, top_p=p, min_p=m) for seed, step, t, k, p, m in chosen]
    together = sampler.sample(logits, sampler.rows(rows)).tolist()
    alone = [sampler.sample(logits[i : i + 1], sampler.rows(rows[i : i + 1])).item() for i in range(len(rows))]
    assert together == alone


@pytest.mark.parametrize("changed", [{}, {"top_k": 60}, {"top_p": 0.9}, {"min_p": 0.01}, {"top_k": 900, "top_p": 0.7}])
@pytest.mark.parametrize("spread", [0.3, 1.0, 6.0])
def test_token_when_few_leading_tokens_decide_then_equals_that_of_the_whole_vocabulary(changed, spread):
    logits = (torch.randn(200, 4000, generator=torch.Generator().manual_seed(2)) * spread).bfloat16()
    sampler = make(4000)
    rows = sampler.rows([row(seed=seed, **changed) for seed in range(200)])
    cut = truncated(sampler.scores(logits, rows).log_softmax(-1), rows, 4000)
    place = (cut.cumulative <= rows.uniforms * cut.total).sum(1, keepdim=True)
    assert sampler.sample(logits, rows).tolist() == cut.ids.gather(1, place).squeeze(1).tolist()


def test_tokens_when_drawn_many_times_then_follow_the_distribution():
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log().expand(20000, 4)
    sampler = make(4)
    ids = sampler.sample(logits, sampler.rows([row(seed=3, step=step) for step in range(20000)]))
    assert (ids.bincount() / 20000 - torch.tensor([0.1, 0.2, 0.3, 0.4])).abs().max() < 0.015


def test_draws_when_several_in_one_step_then_are_independent():
    sampler = make(1000, draws=2)
    rows = sampler.rows([row(seed=1)])
    first, second = (sampler.sample(torch.zeros(1, 1000), rows, draw).item() for draw in (0, 1))
    assert first != second


def test_spec_when_a_parameter_is_unset_then_is_neutral():
    spec = SamplerSpec(vocab=8, temperature="temperature", top_k="top_k", top_p=0.8)
    found = spec.settings({"temperature": 0.5, "top_k": None})
    assert found == SamplerSettings(temperature=0.5, top_k=0, top_p=0.8, min_p=0.0, penalty=1.0)


def test_masks_when_a_phase_allows_nothing_then_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        make(4, masks=torch.zeros(1, 4, dtype=torch.bool))


def test_logprobs_when_asked_then_are_of_the_raw_logits():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    chosen, values, ids = token_logprobs(logits, torch.tensor([0]), 2)
    assert ids.tolist() == [[1, 2]]
    assert torch.allclose(chosen, logits.log_softmax(-1)[:, 0])
    assert torch.allclose(values, logits.log_softmax(-1)[:, [1, 2]])
