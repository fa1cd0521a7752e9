import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mstar_core.errors import InvalidRequest
from mstar_core.spec.content import Image, Tensor, Video
from mstar_core.spec.placement import Placement

RANDOM = np.random.default_rng(0)

TWO_WORKERS = Placement.model_validate(
    {
        "workers": {"first": {"device": "cpu", "threads": 1}, "second": {"device": "cpu", "threads": 1}},
        "groups": [{"nodes": ["predictor", "classifier"], "worker": "second"}],
    }
)


@pytest.fixture(scope="module")
def service(served):
    return served("vjepa2")


def video(frames):
    return Video(RANDOM.integers(0, 256, (frames, 70, 90, 3), np.uint8), 25.0)


def test_a_clip_is_encoded_by_default(service, ask):
    made = ask(service, [video(4)])
    assert made["latents"][0].shape == (2 * 16, 48)
    assert "logits" not in made


def test_a_classifier_gives_logits_and_labels(service, ask):
    made = ask(service, [video(4)], task="classify")
    assert made["logits"][0].shape == (4,)
    assert len(made["text"].splitlines()) == 4
    assert made["end"] == "stop"


@pytest.mark.parametrize("frames", [3, 5, 7])
def test_the_last_of_an_odd_number_of_frames_counts_for_nothing(service, ask, frames):
    clip = video(frames)
    whole = ask(service, [clip], task="encode")["latents"][0]
    cut = ask(service, [Video(clip.frames[:-1], 25.0)], task="encode")["latents"][0]
    np.testing.assert_array_equal(whole, cut)
    assert whole.shape == (frames // 2 * 16, 48)


def test_a_picture_is_a_clip_that_shows_it_twice(service, ask):
    picture = video(1).frames
    once = ask(service, [Image(picture[0])], task="encode")["latents"][0]
    twice = ask(service, [Video(picture.repeat(2, 0), 25.0)], task="encode")["latents"][0]
    np.testing.assert_allclose(once, twice, atol=1e-5)


def test_masks_that_are_left_out_name_every_token(service, ask):
    clip, every = video(4), np.arange(32)
    masks = [Tensor("context_mask", every), Tensor("target_mask", every)]
    default = ask(service, [clip], task="predict")["predictions"][0]
    np.testing.assert_array_equal(default, ask(service, [clip, *masks], task="predict")["predictions"][0])


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(32)), st.integers(1, 31))
def test_predictions_follow_their_tokens_whatever_the_masks_order(service, ask, order, cut):
    clip = Video(np.arange(4 * 64 * 64 * 3, dtype=np.uint32).astype(np.uint8).reshape(4, 64, 64, 3), 25.0)
    context, target = np.array(order[:cut]), np.array(order[cut:])
    mixed = ask(service, [clip, Tensor("context_mask", context), Tensor("target_mask", target)], task="predict")
    masks = [Tensor("context_mask", np.sort(context)), Tensor("target_mask", np.sort(target))]
    ordered = ask(service, [clip, *masks], task="predict")["predictions"][0]
    np.testing.assert_allclose(mixed["predictions"][0], ordered[np.argsort(np.argsort(target))], atol=1e-5)


def test_clips_of_different_lengths_at_one_time_give_what_they_give_alone(service, ask, collect):
    clips = [video(frames) for frames in (2, 4, 4, 6)]
    alone = [ask(service, [clip], task="encode")["latents"][0] for clip in clips]
    tickets = [service.submit("vjepa2", [clip], {"task": "encode"}) for clip in clips]
    for ticket, expected in zip(tickets, alone, strict=True):
        np.testing.assert_allclose(collect(ticket)["latents"][0], expected, atol=1e-5)


@pytest.mark.parametrize("task", ["encode", "predict", "classify"])
def test_two_workers_give_the_bytes_of_one(service, serve, ask, task):
    clip = video(4)
    with serve("vjepa2", placement=TWO_WORKERS) as apart:
        there, here = ask(apart, [clip], task=task), ask(service, [clip], task=task)
    assert there.keys() == here.keys()
    (name,) = here.keys() - {"end", "text"}
    assert there[name][0].tobytes() == here[name][0].tobytes()


@pytest.mark.parametrize(
    ("params", "param", "problem"),
    [
        ({"task": "plan"}, "task", "one of encode, predict, classify"),
        ({"frames": 0}, "frames", "at least 1"),
        ({"labels": 5}, "labels", "at most 4"),
        ({"masks": 1}, "masks", "unknown field"),
    ],
)
def test_wrong_parameters_are_refused_with_their_name(service, params, param, problem):
    with pytest.raises(InvalidRequest, match=problem) as caught:
        service.submit("vjepa2", [video(2)], params)
    assert caught.value.param == param


def test_a_checkpoint_without_a_classifier_does_not_offer_to_classify(served, fixture_dir):
    service = served("vjepa2", fixture_dir / "hf-tiny")
    with pytest.raises(InvalidRequest, match="one of encode, predict; got 'classify'"):
        service.submit("vjepa2", [video(2)], {"task": "classify"})
