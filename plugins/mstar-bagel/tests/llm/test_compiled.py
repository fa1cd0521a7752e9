"""The recorded cases with compiled kernels."""

import contextlib
import functools
import shutil

import pytest

from mstar_core.engines.kernels import COMPILERS
from mstar_core.spec.placement import Placement

pytestmark = [
    pytest.mark.golden,
    pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="needs a C++ compiler"),
]

COMPILED = Placement.model_validate({"workers": {"main": {}}, "groups": [{"nodes": ["llm"], "compile": True}]})


@pytest.fixture(scope="module")
def compiled(checkpoint_of, serve):
    """The compiled services of recorded sets; they run until the module's tests are over."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda source: stack.enter_context(serve(checkpoint_of(source), COMPILED)))


def test_an_answer_of_compiled_steps_is_that_of_the_reference(
    understanding_case, compiled, ask, shown_in, words, ids_of
):
    about = understanding_case.about
    answer = ask(
        compiled(understanding_case.directory),
        [*shown_in(understanding_case), words(about["prompt_ids"])],
        "text",
        max_tokens=(about.get("max_think_token_n") or about["max_length"]) - 1,
        think=about.get("think", False),
        vae_resize=about["path"] == "inferencer",
    )
    assert ids_of(understanding_case, answer.text) == about["reference_returned_tokens"][1:]  # without bos


def test_a_picture_of_compiled_layers_is_that_of_the_reference(image_case, compiled, ask, asked_in):
    content, params = asked_in(image_case)
    image_case.check_picture(ask(compiled(image_case.directory), content, **params).pictures[0], "image_uint8")
