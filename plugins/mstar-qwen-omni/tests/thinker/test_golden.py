import pytest
import torch

from mstar_core.engines.base import BatchLimits
from mstar_core.engines.static_steps import run_again

CASES = (
    "text", "text_reppen", "text_default_penalty", "text_eos", "image", "audio", "video", "video_fractional", "mixed",
    "audio_in_video", "raw_image_chat", "raw_audio_chat",
)  # fmt: skip

TOLERANCE = {"rtol": 0, "atol": 5e-4}


def test_the_recorded_conversations_are_those_that_are_tested(conversations):
    assert set(conversations) >= set(CASES)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [2048, 11], ids=["whole", "cut"])
def test_logits_tokens_and_accepted_states_are_the_references(harness_of, conversations, name, tokens):
    case, harness = conversations[name], harness_of(BatchLimits(tokens=tokens))
    assert harness.generate(case) == case.facts["thinker_tokens"]
    logits, prompt = torch.cat(harness.logits), len(case.ids)
    torch.testing.assert_close(logits[:prompt], case["thinker_prefill_logits"], **TOLERANCE)
    torch.testing.assert_close(logits[prompt - 1 :], case["thinker_step_logits"], **TOLERANCE)
    torch.testing.assert_close(torch.cat(harness.accepted), case["thinker_hidden_accept"], **TOLERANCE)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [2048, 11], ids=["whole", "cut"])
def test_the_talker_is_given_the_users_turns_and_then_the_embedding_of_each_token_fed_back(
    harness_of, conversations, name, tokens
):
    case, harness = conversations[name], harness_of(BatchLimits(tokens=tokens))
    request = harness.open()
    outputs = harness.read(request, case)
    embedding, accepted, media = outputs["spoken"].tensor().split([64, 64, 1], dim=1)
    torch.testing.assert_close(embedding, case["thinker_input_embeds"][case.user], **TOLERANCE)
    torch.testing.assert_close(accepted, case["thinker_hidden_accept"][: len(case.ids)][case.user], **TOLERANCE)
    assert torch.equal(media[:, 0].bool(), case.media[case.user])
    token = outputs["token"]
    spoken = harness.call(request, "write", said=token)["spoken"].tensor()
    assert torch.equal(spoken, harness.node.model.embedding[int(token.tensor())][None])


def test_steps_that_are_recorded_and_run_again_give_the_references_tokens(harness_of, conversations):
    harness = harness_of(capture=run_again)
    for key, name in enumerate(CASES):
        assert (
            harness.generate(conversations[name], key, aloud=name != "text")
            == conversations[name].facts["thinker_tokens"]
        )
    assert harness.engine.runner.recorded


def test_a_reply_that_nobody_hears_gives_the_talker_nothing(harness, conversations):
    case, request = conversations["mixed"], harness.open()
    outputs = harness.read(request, case, aloud=False)
    assert "spoken" not in outputs
    assert "spoken" not in harness.call(request, "write", said=outputs["token"])


def test_a_token_that_ends_the_reply_is_not_shown(harness, conversations):
    case, request = conversations["text_eos"], harness.open()
    outputs = harness.read(request, case)
    for id in case.facts["thinker_tokens"][:-1]:
        assert not outputs["stop"]
        assert int(outputs["shown"]) == id
        outputs = harness.call(request, "write", said=outputs["token"])
    assert outputs["stop"]
    assert "shown" not in outputs
