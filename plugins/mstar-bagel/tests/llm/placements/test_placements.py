"""The model placed in every way that a file of `placements/` shows: what is made is the same."""

import contextlib
import functools
from pathlib import Path

import numpy as np
import pytest

from mstar_core.errors import InvalidRequest
from mstar_core.spec.content import Image, Text
from mstar_core.spec.placement import BatchPlace, Placement, WorkerPlace, load_placement

FILES = sorted((Path(__file__).parents[3] / "placements").glob("*.yaml"))

RANDOM = np.random.default_rng(0)
ONE, TWO = (Image(RANDOM.integers(0, 256, shape, np.uint8)) for shape in ((90, 120, 3), (140, 70, 3)))

THINKING = {"think": True, "max_think_tokens": 4}
REQUESTS = {
    "painted": (["a cat"], {"width": 96, "height": 64}),
    "painted towards nothing": (["a cat"], {"width": 64, "height": 64, "img_scale": 1.5}),
    "painted freely": (["a cat"], {"width": 64, "height": 64, "text_scale": 1.0}),
    "painted with thought": (["a cat"], {"width": 64, "height": 64, "img_scale": 1.5, **THINKING}),
    "edited": ([ONE, "a dog"], {}),
    "edited with thought": ([ONE, "a dog"], THINKING),
    "edited without a word": ([ONE], {}),
    "edited without a word, with thought": ([TWO], THINKING),
    "edited with one scale": ([ONE, "a dog"], {"img_scale": 1.0}),
    "interleaved": (["one", ONE, "two", TWO, "three"], {"renorm": "global"}),
}


def on_this_cpu(placement):
    """The placement with one thread for each of its workers and in the checkpoint's dtype, wherever it is tested."""
    places = dict.fromkeys(placement.workers, WorkerPlace(device="cpu", threads=1))
    groups = tuple(group.model_copy(update={"dtype": "auto"}) for group in placement.groups)
    return placement.model_copy(update={"workers": places, "groups": groups})


@pytest.fixture(scope="module")
def alone(served, ask):
    """What one worker makes of each request."""
    return {name: ask(served(), *_asked(name)[0], **_asked(name)[1]) for name in REQUESTS}


def _asked(name):
    content, params = REQUESTS[name]
    return (content, "text image"), {"steps": 4, "seed": 5, **params}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_model_that_is_spread_over_workers_makes_the_same(file, serve, served, ask, alone):
    question = ([ONE, "what is it"], "text")
    with serve(placement=on_this_cpu(load_placement(file))) as service:
        for name in REQUESTS:
            content, params = _asked(name)
            spread = ask(service, *content, **params)
            assert spread.text == alone[name].text, name
            assert spread.progress == alone[name].progress, name
            np.testing.assert_array_equal(spread.pictures[0], alone[name].pictures[0], name)
        answer = ask(service, *question, max_tokens=5, seed=1)
        assert answer.text == ask(served(), *question, max_tokens=5, seed=1).text


@pytest.fixture(scope="module")
def branches():
    (file,) = (file for file in FILES if file.stem == "guidance-apart")
    return on_this_cpu(load_placement(file))


def test_each_context_is_painted_on_by_its_own_worker(serve, ask, branches):
    with serve(placement=branches) as service:
        ask(service, *_asked("edited")[0], **_asked("edited")[1])
        batches = {
            (each.labels["node"], each.labels["worker"]): each.value
            for each in service.metrics()
            if each.name == "mstar_batches" and each.labels["walk"] == "image_gen"
        }
    assert {batches[key] for key in [("llm", "main"), ("llm_text", "text"), ("llm_image", "image")]} == {3}


def test_contexts_apart_may_be_read_in_parts(serve, ask, branches, alone):
    small = [group.model_copy(update={"batch": BatchPlace(tokens=3)}) for group in branches.groups]
    content, params = _asked("interleaved")
    with serve(placement=branches.model_copy(update={"groups": tuple(small)})) as service:
        np.testing.assert_array_equal(ask(service, *content, **params).pictures[0], alone["interleaved"].pictures[0])


def test_a_model_without_its_painter_answers_only(serve):
    omit = {"bagel": {"omit": ["vae_encoder", "vae_decoder", "guidance"]}}
    with serve(placement=Placement.model_validate({"workers": {"main": {}}, "models": omit})) as service:
        ticket = service.submit("bagel", [ONE, Text("what is it")], {"max_tokens": 3})
        assert all(isinstance(piece, Text) for piece in ticket)
        assert ticket.end.usage["output_tokens"] == 3
        with pytest.raises(InvalidRequest, match="makes text, not image"):
            service.submit("bagel", [Text("a cat")], {}, outputs=frozenset({"image"}))


@pytest.fixture(scope="module")
def apart(checkpoint_of, serve, branches):
    """The services of recorded sets whose contexts are apart; they run until the module's tests are over."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda source: stack.enter_context(serve(checkpoint_of(source), branches)))


@pytest.mark.golden
def test_pictures_of_contexts_apart_are_those_of_the_reference(image_case, apart, ask, asked_in):
    content, params = asked_in(image_case)
    image_case.check_picture(ask(apart(image_case.directory), content, **params).pictures[0], "image_uint8")
