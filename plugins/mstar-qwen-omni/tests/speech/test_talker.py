"""The talker beyond the recorded cases: ends, sampling, voices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mstar_qwen_omni.speech.node import TalkerNode, spoken_ids, user_positions

from mstar_core.engines.sampling import Sampler, SamplerRow, SamplerSpec, truncated

SAMPLED = {"talker_temperature": 0.9, "talker_repetition_penalty": 1.05, "predictor_temperature": 1.0}


def probabilities(spec, logits, params, *, history=(), mask=None):
    """The distribution that one row is drawn from."""
    sampler = Sampler(spec, purpose=("test",), slots=1, masks=mask, device=torch.device("cpu"))
    rows = sampler.rows([SamplerRow(spec.settings(params), 0, 0, 1, -1 if mask is None else 0, True)])
    for token in history:
        sampler.count(rows.slots, torch.tensor([token]), torch.tensor([1], dtype=torch.int32))
    cut = truncated(sampler.scores(logits[None], rows).log_softmax(-1), rows, len(logits))
    return torch.zeros(len(logits), dtype=torch.float64).scatter_(0, cut.ids[0], cut.probabilities[0] / cut.total[0])


def test_first_codes_when_sampled_then_come_from_the_recorded_distribution(talking, recorded):
    node = talking.node
    params = SAMPLED | {"talker_top_k": 50, "talker_top_p": 1.0}
    ours = probabilities(
        node.samplers["code"],
        recorded["sampling/talker_raw_logits"],
        params,
        history=recorded["sampling/talker_history"].tolist(),
        mask=node.masks["code"],
    )
    torch.testing.assert_close(ours.float(), recorded["sampling/talker_probs"], atol=1e-6, rtol=0)


def test_residual_codes_when_sampled_then_come_from_the_recorded_distribution(talking, recorded):
    params = {"predictor_temperature": 1.0, "predictor_top_k": 50, "predictor_top_p": 0.8}
    ours = probabilities(talking.node.samplers["residual"], recorded["sampling/code_predictor_raw_logits"], params)
    torch.testing.assert_close(ours.float(), recorded["sampling/code_predictor_probs"], atol=1e-6, rtol=0)


def test_samplers_when_declared_then_follow_the_requests_parameters(talking):
    assert talking.node.samplers["code"] == SamplerSpec(
        vocab=1088,
        temperature="talker_temperature",
        top_k="talker_top_k",
        top_p="talker_top_p",
        repetition_penalty="talker_repetition_penalty",
    )
    assert talking.node.samplers["residual"].draws == 15


def test_speech_when_sampled_then_depends_on_the_seed_alone(spoken, talking):
    script = spoken("text").script(**SAMPLED)
    other = replace(script, seed=1)
    first, second, beside = talking.speak([script, other, script])
    (alone,) = talking.speak([script])
    assert torch.equal(torch.stack(first.codes), torch.stack(beside.codes))
    assert torch.equal(torch.stack(first.codes), torch.stack(alone.codes))
    assert not torch.equal(first.codes[0], second.codes[0])


def test_residual_codes_when_sampled_then_every_group_draws_its_own_number(spoken, talking):
    script = spoken("text").script(predictor_temperature=50.0, predictor_top_k=0, predictor_top_p=1.0)
    (speech,) = talking.speak([replace(script, frames=4)])
    codes = torch.stack(speech.codes)[:, 1:]
    assert len(set(codes.flatten().tolist())) > 20
    assert not torch.equal(codes[0], codes[1])


def test_speech_when_the_reply_is_empty_then_ends_at_once_without_codes(spoken, talking):
    script = spoken("text").script()
    (speech,) = talking.speak([replace(script, items=script.items[:1])])
    assert speech.ended
    assert not speech.codes


def test_speech_when_the_codec_ends_at_once_then_has_no_codes(spoken, talking_as):
    class Ending(TalkerNode):
        """May only say that it has ended."""

        def __init__(self, context):
            super().__init__(context)
            eos = torch.arange(self.config.decoder.vocab) == self.config.codec.eos
            self.masks = {"code": eos[None]}

    (speech,) = talking_as(Ending).speak([spoken("text").script()])
    assert speech.ended
    assert not speech.codes


def test_speech_when_the_voice_changes_then_differs(spoken, talking):
    ethan, chelsie = talking.speak([spoken("text").script(voice=voice) for voice in ("ethan", "chelsie")])
    assert not torch.equal(torch.stack(ethan.codes), torch.stack(chelsie.codes))


def test_spoken_ids_when_made_then_hold_codes_and_the_end(spoken):
    config = spoken("text").config.talker
    (allowed,) = spoken_ids(config.decoder, config.codec.eos)
    assert allowed.nonzero().flatten().tolist() == [*range(64), config.codec.eos]


@pytest.mark.parametrize("step", [1.0, 6.5])
def test_user_positions_when_there_are_several_turns_then_each_begins_behind_the_one_before(step):
    thinker = np.array([[0, 1, 2, 3, 3 + step, 4 + step, 5 + step, 6 + step]] * 3, np.float32)
    turns = np.array([[1, 3], [4, 6]])
    assert user_positions(thinker, turns).tolist() == [[0, 1, 2, 3]] * 3


def test_user_positions_when_a_picture_is_seen_then_axes_keep_their_distances():
    thinker = np.array([[4, 5, 5, 7], [4, 5, 5, 7], [4, 5, 6, 7]], np.float32)
    turns = np.array([[0, 4]])
    assert user_positions(thinker, turns).tolist() == [[0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]]
