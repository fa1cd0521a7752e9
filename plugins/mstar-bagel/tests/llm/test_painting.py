"""Pictures through the runtime: seeds, steps, guidance, neighbours in a batch, and what may come between."""

import numpy as np
import pytest

from mstar_core.errors import Cancelled
from mstar_core.spec.content import Image, Text
from mstar_core.spec.placement import Placement

RANDOM = np.random.default_rng(0)
PHOTO = Image(RANDOM.integers(0, 256, (50, 40, 3), np.uint8))
SMALL = {"width": 32, "height": 48, "steps": 4, "seed": 7}

LOAD = [
    (["1 2 3"], {"width": 32, "height": 32, "steps": 7, "seed": 1}),
    (["4 5"], {"width": 64, "height": 32, "steps": 3, "seed": 2, "text_scale": 1.0}),
    ([PHOTO, "6 7 8 9"], {"steps": 5, "seed": 3}),
    ([PHOTO], {"steps": 4, "seed": 4}),
    (["10 11", PHOTO, "12", PHOTO, "13 14"], {"steps": 6, "seed": 5, "think": True, "max_think_tokens": 5}),
    (["1 2 3"], {"width": 48, "height": 64, "steps": 5, "seed": 6, "img_scale": 1.5, "renorm": "channel"}),
]
"""Requests that differ in everything that a batch could mix up."""


TALK = (["1 2 3", PHOTO, "4 5"], "text")


def placed(**group):
    return Placement.model_validate({"workers": {"main": {}}, "groups": [{"nodes": ["llm"], **group}]})


def submit(service, content, made, **params):
    pieces = [Text(piece) if isinstance(piece, str) else piece for piece in content]
    return service.submit("bagel", pieces, params, outputs=frozenset(made.split()))


@pytest.fixture(scope="module")
def service(served, checkpoint_of, fixture_dir):
    return served(checkpoint_of(fixture_dir))


@pytest.fixture(scope="module")
def paint(service, ask):
    def painting(*content, **params):
        (picture,) = ask(service, content, **SMALL | params).pictures
        return picture

    return painting


def differ(one, other):
    return one.shape != other.shape or bool((one != other).any())


@pytest.mark.parametrize("steps", [1, 2, 7, 50])
def test_a_picture_takes_one_step_less_than_there_are_times(service, ask, steps):
    answer = ask(service, ["1 2"], **SMALL | {"steps": steps})
    assert answer.progress == tuple((done, steps - 1) for done in range(1, steps))
    assert answer.pictures[0].shape == (48, 32, 3)
    assert answer.usage == {"input_tokens": 4, "output_tokens": 6}


def test_a_seed_gives_the_same_picture_again_and_another_seed_another(paint):
    first = paint("1 2")
    np.testing.assert_array_equal(first, paint("1 2"))
    assert differ(first, paint("1 2", seed=8))


def test_a_request_gives_the_same_again_after_others_of_every_kind(service, ask):
    def all_of_them():
        answers = [ask(service, content, **params) for content, params in LOAD]
        answers.append(ask(service, *TALK, max_tokens=6))
        return [(answer.text, [picture.tobytes() for picture in answer.pictures]) for answer in answers]

    assert all_of_them() == all_of_them()


@pytest.mark.parametrize(
    "change",
    [{"text_scale": 1.0}, {"timestep_shift": 1.0}, {"renorm": "channel"}, {"interval_start": 0.9}, {"renorm_min": 1.0}],
    ids=lambda change: next(iter(change)),
)
def test_a_parameter_changes_the_picture(paint, change):
    assert differ(paint("1 2"), paint("1 2", **change))


def test_the_prompt_and_the_given_picture_change_the_picture(paint):
    assert differ(paint("1 2"), paint("3 4"))
    other = Image(PHOTO.pixels[::-1].copy())
    assert differ(paint(PHOTO, "1 2"), paint(other, "1 2"))
    assert differ(paint(PHOTO, "1 2"), paint(PHOTO, "1 2", img_scale=1.0))


def test_the_order_of_texts_and_pictures_counts(paint):
    other = Image(PHOTO.pixels[::-1].copy())
    assert differ(paint(PHOTO, "1 2", other, "3 4"), paint(other, "1 2", PHOTO, "3 4"))
    assert differ(paint("1 2", PHOTO, "3 4"), paint(PHOTO, "1 2", "3 4"))


def test_a_sampled_posterior_repeats_with_the_seed_and_is_not_the_mean(paint):
    sampled = paint(PHOTO, "1 2")
    np.testing.assert_array_equal(sampled, paint(PHOTO, "1 2"))
    assert differ(sampled, paint(PHOTO, "1 2", sample_posterior=False))


def test_requests_that_paint_together_get_what_each_gets_alone(keeper, log, fixture_dir, ask, answer_of):
    service = keeper(fixture_dir)
    alone = [ask(service, content, "text image", **params) for content, params in LOAD]
    spoken = {"max_tokens": 40, "temperature": 1.0, "seed": 9}
    said = ask(service, *TALK, **spoken)
    log.clear()
    tickets = [submit(service, content, "text image", **params) for content, params in LOAD]
    talk = submit(service, *TALK, **spoken)
    for one, ticket in zip(alone, tickets, strict=True):
        other = answer_of(ticket)
        np.testing.assert_array_equal(one.pictures[0], other.pictures[0])
        assert (one.text, one.progress, one.usage) == (other.text, other.progress, other.usage)
    assert answer_of(talk).text == said.text
    assert max(len(step["positions"]) for step in log.of("image_gen")) > 1


def test_a_picture_that_nobody_wants_any_more_is_not_finished(keeper, log, fixture_dir, ask):
    service = keeper(fixture_dir)
    ticket = submit(service, ["1 2"], "image", **SMALL | {"steps": 1000})
    with pytest.raises(Cancelled):  # noqa: PT012 (what is cancelled is the loop)
        for piece in ticket:
            if piece.done == 3:
                ticket.cancel()
    made = len(log.euler)
    ask(service, ["1 2"], **SMALL)
    assert len(log.euler) <= made + 1 + SMALL["steps"]  # the step under way, and those of the next request
    assert made < 500


def test_small_batches_change_nothing(serve, checkpoint_of, fixture_dir, service, ask, answer_of):
    with serve(checkpoint_of(fixture_dir), placed(batch={"tokens": 5})) as small:
        tickets = [submit(small, content, "image", **params) for content, params in LOAD]
        for (content, params), ticket in zip(LOAD, tickets, strict=True):
            np.testing.assert_array_equal(ask(service, content, **params).pictures[0], answer_of(ticket).pictures[0])


def test_a_pool_that_is_too_small_for_all_changes_nothing(serve, checkpoint_of, fixture_dir, service, ask, answer_of):
    crowd = [{"steps": 4, "seed": seed, "think": True, "max_think_tokens": 20} for seed in range(5)]
    content = ["10 11", PHOTO, "12", PHOTO, "13 14"]
    with serve(checkpoint_of(fixture_dir), placed(kv={"tokens": 512})) as small:
        tickets = [submit(small, content, "image", **params) for params in crowd]
        for params, ticket in zip(crowd, tickets, strict=True):
            np.testing.assert_array_equal(ask(service, content, **params).pictures[0], answer_of(ticket).pictures[0])


def test_thoughts_are_shown_to_those_who_want_text(service, ask):
    params = SMALL | {"think": True, "max_think_tokens": 3}
    both = ask(service, ["1 2"], "text image", **params)
    assert len(both.text.split()) == 3
    assert both.usage == {"input_tokens": 35 + 4, "output_tokens": 3 + 6}
    picture = ask(service, ["1 2"], "image", **params)
    assert picture.text == ""
    np.testing.assert_array_equal(both.pictures[0], picture.pictures[0])
    assert differ(both.pictures[0], ask(service, ["1 2"], **SMALL).pictures[0])
