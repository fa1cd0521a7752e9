import mstar_orpheus.plugin
import numpy as np
import pytest

from mstar_core.client.engine import Engine
from mstar_core.errors import InvalidRequest
from mstar_core.testing.plugins import registry_with

LONG = "One sentence stands here, and it is not short at all. " * 12


@pytest.fixture(scope="module")
def engine():
    with Engine("orpheus", registry=registry_with(mstar_orpheus.plugin)) as engine:
        yield engine


def samples(result):
    return np.zeros(0, np.float32) if result.audio is None else result.audio.samples


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 6])
def test_a_reply_of_few_frames_is_heard_whole(engine, frames):
    result = engine.generate("Hi.", seed=5, max_tokens=7 * frames)
    assert result.finish_reason == "length"
    assert samples(result).size == 2048 * frames


def test_a_reply_cut_by_max_tokens_says_so_and_keeps_what_was_made(engine):
    result = engine.generate("Hi.", seed=5, max_tokens=7 * 4 + 3)
    assert (result.finish_reason, result.usage["output_tokens"]) == ("length", 31)
    assert samples(result).size == 2048 * 4


def test_same_seed_same_samples_streamed_whole_and_beside_others(engine):
    alone = samples(engine.generate("Hello there.", seed=7, max_tokens=140))
    streamed = np.concatenate([piece.samples for piece in engine.stream("Hello there.", seed=7, max_tokens=140)])
    from mstar_core.spec.content import Text

    tickets = [
        engine.service.submit("orpheus", [Text("Hello there.")], {"seed": seed, "max_tokens": 140})
        for seed in range(12)
    ]
    together = [np.concatenate([piece.samples for piece in ticket]) for ticket in tickets]
    assert np.array_equal(alone, streamed)
    assert np.array_equal(alone, together[7])
    assert not np.array_equal(together[6], together[7])


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_the_ends_of_the_seed_range_work(engine, seed):
    assert samples(engine.generate("Hi.", seed=seed, max_tokens=14)).size == 4096


def test_noise_is_part_of_the_seed_and_can_be_left_out(engine):
    noisy, again, silent = (
        samples(engine.generate("Hi.", seed=3, max_tokens=28, temperature=0, noise=noise))
        for noise in (True, True, False)
    )
    assert np.array_equal(noisy, again)
    assert not np.array_equal(noisy, silent)


def test_a_run_is_not_changed_by_what_ran_in_between(engine):
    first = samples(engine.generate("Hello.", seed=1, max_tokens=70))
    engine.generate("Something else entirely.", seed=2, max_tokens=70, temperature=1.5, repetition_penalty=2.0)
    assert np.array_equal(first, samples(engine.generate("Hello.", seed=1, max_tokens=70)))


def test_long_text_is_spoken_segment_by_segment(engine):
    result = engine.generate(LONG, seed=1, max_tokens=35)
    segments = -(-len(LONG) // 300)
    assert result.usage["output_tokens"] <= 35 * (segments + 1)
    assert samples(result).size > 2048 * 5 * 2
    assert result.finish_reason == "length"


def test_a_second_segment_sounds_as_it_would_alone_but_for_the_codecs_context(engine):
    """A new segment starts on an empty cache with an empty history: its greedy ids are those of its text alone."""
    text = "First words are said here." + " " * 280
    greedy = {"temperature": 0.0, "noise": False, "max_tokens": 70}
    both = engine.generate(f"{text}Then others.", **greedy)
    second = engine.generate("Then others.", **greedy)
    tail = samples(second)[3 * 2048 :]
    np.testing.assert_allclose(samples(both)[-tail.size :], tail, atol=1e-4)


@pytest.mark.parametrize("text", ["...", "!?", "🙂", "שלום", "<laugh>", "<|eot_id|>", "<custom_token_3> hi", "a\x07b"])
def test_unnatural_text_is_spoken(engine, text):
    assert samples(engine.generate(text, seed=1, max_tokens=21)).size > 0


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\x00\x07"])
def test_text_without_anything_to_say_is_refused(engine, text):
    with pytest.raises(InvalidRequest) as raised:
        engine.generate(text)
    assert raised.value.param == "input"


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"voice": "bob"}, "voice"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1024}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"decode_mode": "fast"}, "decode_mode"),
        ({"noise": "yes"}, "noise"),
        ({"tempo": 1}, "tempo"),
    ],
)
def test_a_bad_parameter_is_refused_by_name(engine, parameters, field):
    with pytest.raises(InvalidRequest) as raised:
        engine.generate("Hi.", **parameters)
    assert raised.value.param == field


def test_compat_leaves_out_what_the_official_loop_leaves_out(engine):
    greedy = {"temperature": 0.0, "max_tokens": 7 * 9}
    exact = samples(engine.generate("Hi.", **greedy)).size // 2048
    compat = samples(engine.generate("Hi.", decode_mode="compat", **greedy)).size // 2048
    assert compat == exact - 3
