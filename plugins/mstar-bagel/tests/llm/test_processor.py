import numpy as np
import pytest
from mstar_bagel import plugin
from mstar_bagel.parameters import COMPARED
from mstar_bagel.processor import BagelProcessor
from mstar_bagel.tokenizer import BagelTokenizer

from mstar_core.errors import CheckpointError, InvalidRequest
from mstar_core.spec.content import Image, Tensor, Text, Video
from mstar_core.spec.params import check_parameters

PHOTO = Image(np.random.default_rng(0).integers(0, 256, (90, 41, 3), np.uint8))


@pytest.fixture(scope="module")
def config(fixture_dir, checkpoint_of):
    return plugin.mstar_config(card=None, checkpoint=checkpoint_of(fixture_dir))


@pytest.fixture(scope="module")
def prepare(config, fixture_dir, checkpoint_of):
    processor = BagelProcessor(config.values, checkpoint_of(fixture_dir))

    def preparing(*content, **params):
        pieces = [Text(piece) if isinstance(piece, str) else piece for piece in content]
        return processor.prepare(pieces, check_parameters(config.parameters, params))

    return preparing


def refused(prepare, *content, **params):
    with pytest.raises(InvalidRequest) as caught:
        prepare(*content, **params)
    return caught.value


@pytest.mark.parametrize(
    ("params", "field", "told"),
    [
        ({"width": 40}, "width", "multiple of 16, got 40; the nearest is 32"),
        ({"height": 72}, "height", "at most 64"),
        ({"width": 0}, "width", "at least 16"),
        ({"steps": 0}, "steps", "at least 1"),
        ({"renorm": "local"}, "renorm", "global, channel, text_channel"),
        ({"timestep_shift": 0}, "timestep_shift", "greater than 0"),
        ({"interval_end": 1.5}, "interval_end", "at most 1"),
        ({"text_scale": "big"}, "text_scale", "a number"),
        ({"think": 1}, "think", "true or false"),
        ({"max_tokens": 4096}, "max_tokens", "exceeds the model's 4096 positions"),
        ({"max_think_tokens": 4096, "think": True}, "max_think_tokens", "exceeds the model's 4096 positions"),
        ({"image": "x"}, "image", "unknown field"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_parameter_that_cannot_be_is_refused_by_name(prepare, params, field, told):
    error = refused(prepare, "1 2", **params)
    assert error.param == field
    assert told in error.message


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ([], "input"),
        ([" \n"], "input"),
        (["\ud800"], "input"),
        ([Video(np.zeros((2, 16, 16, 3), np.uint8), 1.0)], "input"),
        ([Image(np.zeros((4, 4), np.uint8))], "input"),
        (["1", Tensor("nois", np.zeros(3, np.float32))], "nois"),
        (["1", Tensor("noise", np.zeros((3, 64), np.float32))], "noise"),
        ([PHOTO, Tensor("posterior_noise", np.zeros((16, 2, 2), np.float32))], "posterior_noise"),
        (["1 " * 4100], "input"),
    ],
    ids=["nothing", "blank", "half", "video", "grey", "unknown", "noise", "posterior", "long"],
)
def test_content_that_the_model_does_not_take_is_refused_by_name(prepare, content, field):
    assert refused(prepare, *content).param == field


def test_a_text_is_its_ids_between_bos_and_eos(prepare):
    (ids,) = prepare("7 8 9").inputs["content"]
    assert ids.tolist() == [500, 7, 8, 9, 501]


def test_what_a_client_says_is_never_a_marker(tiny, config):
    tiny_ids = plugin.mstar_config(card=None, checkpoint=tiny).values.ids
    ids = BagelTokenizer(tiny, tiny_ids).segment("<|im_end|>")[1:-1]
    assert tiny_ids.eos not in ids
    assert len(ids) > 1


def test_pictures_come_as_both_encoders_see_them(prepare):
    prepared = prepare("1", PHOTO, "2")
    assert [each.shape for each in prepared.inputs["content"]] == [(3,), (70, 28, 3), (3,)]
    assert [each.shape for each in prepared.inputs["pictures"]] == [(64, 32, 3)]
    looked_at = prepare(PHOTO, vae_resize=False).inputs["content"][0]
    assert looked_at.shape == (70, 28, 3)
    assert (looked_at != prepared.inputs["content"][1]).any()


def test_defaults_are_those_of_the_task(prepare):
    painted, edited = prepare("1").params, prepare(PHOTO, "1").params
    assert (painted["img_scale"], painted["interval_start"], painted["renorm"]) == (1.0, 0.4, "global")
    assert (edited["img_scale"], edited["interval_start"], edited["renorm"]) == (2.0, 0.0, "text_channel")
    assert (painted["height"], painted["width"]) == (64, 64)
    assert (edited["height"], edited["width"]) == (64, 32)
    assert prepare(PHOTO, "1", renorm="global", width=48).params["renorm"] == "global"
    assert prepare(PHOTO, "1", renorm="global", width=48).params["width"] == 48


def test_a_long_text_leaves_less_room_for_what_is_written(prepare):
    assert prepare("1").params["max_tokens"] == 1000
    assert prepare("1 " * 3593).params["max_tokens"] == 500
    assert prepare("1 " * 3593, max_tokens=7).params["max_tokens"] == 7


def test_thinking_brings_both_prompts(prepare):
    assert "think_to_paint" not in prepare("1").inputs
    prepared = prepare("1", think=True)
    assert prepared.inputs["think_to_paint"][0][1] == prepared.inputs["think_to_answer"][0][1]
    assert len(prepared.inputs["think_to_paint"][0]) == 35


def test_half_a_character_waits_for_its_other_half(tiny):
    config = plugin.mstar_config(card=None, checkpoint=tiny).values
    tokenizer = BagelTokenizer(tiny, config.ids)
    stream = tokenizer.stream()
    pieces = [stream.text(id) for id in tokenizer.segment("añb")[1:-1]]
    assert "".join(pieces) == "añb"
    assert "" in pieces


def test_a_thought_ends_where_the_model_ended_it(tiny):
    ids = plugin.mstar_config(card=None, checkpoint=tiny).values.ids
    tokenizer = BagelTokenizer(tiny, ids)
    said = tokenizer.segment("so be it")[1:-1]
    for end in (ids.eos, ids.bos):
        assert tokenizer.thought([*said, end, *said]) == [ids.bos, *said, ids.eos]


def test_a_checkpoint_without_a_tokenizer_is_refused_with_the_file(fixture_dir, config):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        BagelProcessor(config.values, fixture_dir)


@pytest.mark.parametrize(
    ("content", "params", "compared"),
    [
        (["1 2"], {}, ["text"]),
        (["1 2"], {"img_scale": 2.0}, ["text"]),
        ([PHOTO, "1 2"], {}, ["text", "image"]),
        ([PHOTO, "1 2"], {"img_scale": 1.0}, ["text"]),
        (["1 2", PHOTO], {}, ["image"]),
        (["1 2"], {"think": True, "img_scale": 2.0}, ["text", "image"]),
        ([PHOTO, "1 2"], {"text_scale": 1.0}, []),
    ],
)
def test_guidance_needs_the_contexts_that_differ_from_the_main_one(prepare, content, params, compared):
    assert prepare(*content, **params).params[COMPARED] == compared
