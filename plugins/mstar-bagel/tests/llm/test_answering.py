"""Answers in words through the runtime."""

import numpy as np
import pytest

from mstar_core.spec.content import Image

PHOTO = Image(np.random.default_rng(1).integers(0, 256, (90, 40, 3), np.uint8))


@pytest.fixture(scope="module")
def answer(served, checkpoint_of, fixture_dir, ask):
    def answering(*content, **params):
        return ask(served(checkpoint_of(fixture_dir)), content, "text", **{"max_tokens": 6, "seed": 1} | params)

    return answering


def test_an_answer_is_cut_at_its_length(answer):
    given = answer(PHOTO, "1 2 3", max_tokens=4)
    assert given.end == "length"
    assert given.usage["output_tokens"] == 4
    assert not given.pictures


def test_what_is_said_depends_on_pictures_texts_and_their_order(answer):
    said = {
        answer(*content).text
        for content in ([PHOTO, "1 2 3"], ["1 2 3"], ["1 2 3", PHOTO], [PHOTO, "3 2 1"], [PHOTO, PHOTO, "1 2 3"])
    }
    assert len(said) == 5


def test_a_temperature_draws_by_seed(answer):
    hot = {"temperature": 2.0}
    assert answer("1 2", **hot).text == answer("1 2", **hot).text
    assert answer("1 2", **hot).text != answer("1 2", **hot, seed=2).text
    assert answer("1 2", seed=2).text == answer("1 2", seed=3).text


def test_thinking_puts_the_systems_words_first(answer):
    assert answer(PHOTO, "1 2", think=True).text != answer(PHOTO, "1 2").text
