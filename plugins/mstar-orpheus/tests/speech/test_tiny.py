import numpy as np
import pytest

from mstar_core.errors import InvalidRequest
from mstar_core.spec.content import Text


@pytest.fixture(scope="module")
def service(serve):
    with serve() as service:
        yield service


def test_the_bundled_checkpoint_is_the_default_and_speaks(service, speak):
    samples, reason = speak(service, "Hello there.", seed=1, max_tokens=70)
    assert service.models["orpheus"].checkpoint == "tiny"
    assert len(samples) > 0
    assert len(samples) % 2048 == 0
    assert np.abs(samples).max() <= 1
    assert reason in ("stop", "length")


def test_the_same_seed_gives_the_same_samples_alone_and_beside_others(service, speak):
    alone = {seed: speak(service, "Again.", seed=seed, max_tokens=42)[0] for seed in (0, 7, 2**63 - 1)}
    tickets = {seed: service.submit("orpheus", [Text("Again.")], {"seed": seed, "max_tokens": 42}) for seed in alone}
    for seed, ticket in tickets.items():
        np.testing.assert_array_equal(np.concatenate([content.samples for content in ticket]), alone[seed])
    assert not np.array_equal(alone[0], alone[7])


def test_audio_comes_in_pieces_before_the_end(service):
    ticket = service.submit("orpheus", [Text("In pieces.")], {"seed": 1, "max_tokens": 140})
    assert len(list(ticket)) > 1


def test_usage_counts_the_prompt_and_the_sampled_ids(service):
    ticket = service.submit("orpheus", [Text("abc")], {"seed": 3, "max_tokens": 30, "slot_mask": False})
    list(ticket)
    assert ticket.end.usage["input_tokens"] == len("tara: abc") + 6
    assert 1 <= ticket.end.usage["output_tokens"] <= 30


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"voice": "tarra"}, "voice"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1024}, "max_tokens"),
        ({"decode_mode": "fast"}, "decode_mode"),
        ({"noise": "no"}, "noise"),
        ({"seed": 2**63}, "seed"),
        ({"top_q": 1}, "top_q"),
    ],
)
def test_a_bad_parameter_is_refused_by_name(service, params, field):
    with pytest.raises(InvalidRequest) as caught:
        service.submit("orpheus", [Text("Hi.")], params)
    assert caught.value.param == field


def test_an_unknown_voice_is_answered_with_the_nearest_and_all_valid_ones(service):
    with pytest.raises(InvalidRequest, match=r"tara, leah, jess, leo, dan, mia, zac, zoe.*did you mean 'tara'"):
        service.submit("orpheus", [Text("Hi.")], {"voice": "tarra"})


@pytest.mark.parametrize("text", ["?!…", "🎉👨‍👩‍👧", "שלום עולם", "a\x07b", "<laugh>", "<|eot_id|><custom_token_2>"])
def test_odd_text_is_spoken(service, speak, text):
    samples, reason = speak(service, text, seed=5, max_tokens=21)
    assert reason in ("stop", "length")
    assert len(samples) % 2048 == 0
