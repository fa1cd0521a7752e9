"""The talker's numbers on the recorded cases (transformers, greedy, float32)."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from mstar_core.engines.base import BatchLimits

SPOKEN = (
    "text", "text_reppen", "text_default_penalty", "text_eos", "image", "audio", "video", "mixed", "raw_audio_chat",
)  # fmt: skip
pytestmark = pytest.mark.golden

TOLERANCE = 5e-4


@contextmanager
def watching(module, sink):
    """Keeps what a module is given and gives."""
    handle = module.register_forward_hook(lambda _, given, made: sink.append((given, made)))
    try:
        yield
    finally:
        handle.remove()


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", SPOKEN)
def test_prompt_when_a_case_is_heard_then_rows_and_positions_are_the_recorded_ones(name, spoken, talking):
    case, seen = spoken(name), []
    with watching(talking.node.model.decoder, seen):
        talking.speak([case.script()])
    (prompt, step), _ = seen[0]
    (opening, first), _ = seen[1]
    close(torch.cat([prompt, opening]), case["talker_prefill_embeds"])
    positions = torch.cat([step.positions, first.positions], 1)
    assert torch.equal(positions, case["talker_position_ids"].expand(3, -1))


@pytest.mark.parametrize("name", SPOKEN)
def test_codes_when_a_case_is_spoken_then_are_the_recorded_ones(name, spoken, talking):
    case = spoken(name)
    (speech,) = talking.speak([case.script()])
    frames = case["codes"].shape[1]
    assert torch.equal(torch.stack(speech.codes[:frames], 1), case["codes"])
    assert speech.ended == (case.facts["talker_finish"] == "eos")


@pytest.mark.parametrize("name", SPOKEN)
def test_talker_when_a_case_is_spoken_then_states_logits_and_inputs_are_the_recorded_ones(name, spoken, talking):
    case, heads, inputs = spoken(name), [], []
    with watching(talking.node.model.head, heads), watching(talking.node.model.decoder, inputs):
        talking.speak([case.script()])
    close(torch.cat([given for (given,), _ in heads]), case["talker_step_hidden"])
    close(torch.cat([made for _, made in heads]), case["talker_step_logits"])
    close(torch.cat([given for (given, _), _ in inputs[2:]]), case["talker_feedback_embeds"])
    positions = torch.cat([step.positions for (_, step), _ in inputs[2:]], 1)
    assert torch.equal(positions, case["talker_decode_position_ids"].expand(3, -1))


@pytest.mark.parametrize("name", SPOKEN)
def test_predictor_when_a_case_is_spoken_then_inputs_and_logits_are_the_recorded_ones(name, spoken, talking):
    case, predictor = spoken(name), talking.node.model.predictor
    prompts, logits = [], [[] for _ in predictor.heads]
    with watching(predictor, prompts):
        for head, sink in zip(predictor.heads, logits, strict=True):
            head.register_forward_hook(lambda _, given, made, sink=sink: sink.append(made))
        talking.speak([case.script()])
    for head in predictor.heads:
        head._forward_hooks.clear()
    frames = case["codes"].shape[1]
    close(torch.cat([torch.stack(given[:2], 1) for given, _ in prompts])[:frames], case["code_predictor_prefill"])
    close(torch.stack([torch.cat(each) for each in logits], 1)[:frames], case["code_predictor_logits"])


def test_codes_when_all_cases_run_in_one_batch_then_are_those_of_each_alone(spoken, talking):
    scripts = [spoken(name).script() for name in SPOKEN]
    together = talking.speak(scripts)
    for script, speech in zip(scripts, together, strict=True):
        (alone,) = talking.speak([script])
        assert torch.equal(torch.stack(speech.feedback), torch.stack(alone.feedback))
        assert torch.equal(torch.stack(speech.codes), torch.stack(alone.codes))


def test_codes_when_the_prompt_is_read_in_parts_then_are_the_recorded_ones(spoken, talking):
    case = spoken("audio")
    (speech,) = talking.speak([case.script()], BatchLimits(tokens=10))
    assert torch.equal(torch.stack(speech.codes[:6], 1), case["codes"])
