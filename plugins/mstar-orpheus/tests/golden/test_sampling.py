import pytest
import torch

from mstar_core.engines.sampling import Sampler, SamplerRow, SamplerSettings, SamplerSpec, truncated

pytestmark = pytest.mark.golden


def probabilities(row, logits, history):
    vocab = len(logits)
    spec = SamplerSpec(vocab=vocab, repetition_penalty="repetition_penalty")
    sampler = Sampler(spec, purpose=("test",), slots=1, masks=None, device=torch.device("cpu"))
    sampler.count(torch.ones_like(history), history, torch.ones_like(history, dtype=torch.int32))
    settings = SamplerSettings(
        temperature=row["temperature"],
        top_k=row["top_k"],
        top_p=row["top_p"],
        min_p=0.0,
        penalty=row["repetition_penalty"],
    )
    rows = sampler.rows([SamplerRow(settings, seed=0, step=0, slot=1, phase=-1, counts=True)])
    cut = truncated(sampler.scores(logits[None], rows).log_softmax(-1), rows, vocab)
    return torch.zeros(vocab).scatter(0, cut.ids[0], (cut.probabilities / cut.total)[0].float())


def test_the_samplers_distributions_are_the_references(facts, cases):
    rows = facts["cases"]["sampling"]["rows"]
    assert rows
    for row in rows:
        found = probabilities(row, cases[f"sampling/{row['logits']}"], cases[f"sampling/{row['history']}"])
        torch.testing.assert_close(found, cases[f"sampling/{row['key']}"], atol=1e-5, rtol=0, msg=row["key"])
