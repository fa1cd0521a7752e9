import pytest
from mstar_bagel.llm.contexts import IMAGE, MAIN, TEXT, Contexts

PARAMS = {"text_scale": 4.0, "img_scale": 2.0}
EVERYTHING = (MAIN, TEXT, IMAGE)


def after(contexts, *walks):
    """The contexts once these walks have run, each of which moves counters by 10."""
    for walk in walks:
        contexts.settle(walk, 10)
    return contexts


@pytest.mark.parametrize(
    ("walks", "positions"),
    [
        (["prefill_prompt"], {MAIN: 10, TEXT: 0}),
        (["prefill_text", "prefill_prompt"], {MAIN: 20, TEXT: 10}),
        (["prefill_vae", "prefill_vit", "prefill_prompt"], {MAIN: 30, TEXT: 20, IMAGE: 10}),
        (["prefill_system", "prefill_vae", "prefill_vit"], {MAIN: 30, IMAGE: 10}),
        (["prefill_system", "prefill_prompt", "prefill_thought"], {MAIN: 30, TEXT: 10, IMAGE: 20}),
        (["prefill_vae", "prefill_vit", "prefill_thought"], {MAIN: 30, TEXT: 20, IMAGE: 0}),
        (["read_system", "read_picture", "read_text"], {MAIN: 30}),
    ],
)
def test_a_context_leaves_main_where_main_reads_what_it_is_not_to_see(walks, positions):
    assert after(Contexts.begin(EVERYTHING, PARAMS), *walks).positions == positions


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, EVERYTHING),
        ({"img_scale": 1.0}, (MAIN, TEXT)),
        ({"text_scale": 1.0}, (MAIN,)),
    ],
)
def test_only_what_guidance_compares_is_kept(params, kept):
    assert Contexts.begin(EVERYTHING, PARAMS | params).kept == kept


def test_a_context_apart_is_one_from_the_start():
    apart = after(Contexts.begin((TEXT,), PARAMS), "prefill_text", "prefill_vae", "prefill_prompt")
    assert apart.positions == {TEXT: 20}
    assert Contexts.begin((IMAGE,), PARAMS | {"img_scale": 1.0}).positions == {}


def test_a_step_without_guidance_runs_on_main_alone():
    contexts = after(Contexts.begin(EVERYTHING, PARAMS), "prefill_vae", "prefill_prompt")
    assert contexts.painting(guided=False) == (MAIN,)
    assert set(contexts.painting(guided=True)) == set(EVERYTHING)
    assert Contexts.begin((TEXT,), PARAMS).painting(guided=False) == ()
