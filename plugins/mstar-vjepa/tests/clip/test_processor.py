import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mstar_vjepa.clip.config import ClipConfig
from mstar_vjepa.clip.parameters import MOST_FRAMES
from mstar_vjepa.clip.processor import ClipProcessor

from mstar_core.errors import InvalidRequest
from mstar_core.plugins.assemble import locate
from mstar_core.spec.content import Image, Prepared, Tensor, Text, Video

RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def config(registry):
    return ClipConfig.read(locate(registry.card("vjepa2")))


@pytest.fixture(scope="module")
def processor(config):
    return ClipProcessor(config)


def clip(frames, height=40, width=50):
    return RANDOM.integers(0, 256, (frames, height, width, 3), np.uint8)


def prepare(processor, *content, task="encode", frames=None):
    return processor.prepare(content, {"task": task, "frames": frames, "labels": 2})


@pytest.mark.parametrize(
    "content",
    [
        lambda: Video(clip(5), 25.0),
        lambda: Image(clip(1)[0]),
        lambda: Tensor("frames", clip(3)),
        lambda: Tensor("pixels", np.zeros((4, 3, 64, 64), np.float32)),
    ],
    ids=["video", "image", "frames", "pixels"],
)
def test_a_clip_in_any_form_becomes_pixels_of_the_models_size(processor, content):
    (pixels,) = prepare(processor, content()).inputs["pixels"]
    assert pixels.shape[1:] == (3, 64, 64)
    assert pixels.dtype == np.float32


@pytest.mark.parametrize(
    ("there", "wanted", "picked"), [(10, 5, [0, 2, 4, 6, 8]), (7, 3, [0, 2, 4]), (4, 4, [0, 1, 2, 3])]
)
def test_frames_are_picked_at_equal_distances(processor, there, wanted, picked):
    frames = clip(there)
    (pixels,) = prepare(processor, Video(frames, 25.0), frames=wanted).inputs["pixels"]
    (expected,) = prepare(processor, Video(frames[picked], 25.0)).inputs["pixels"]
    np.testing.assert_array_equal(pixels, expected)


def nan_pixels():
    pixels = np.zeros((2, 3, 64, 64), np.float32)
    pixels[1, 2, 3, 4] = np.nan
    return pixels


@pytest.mark.parametrize(
    ("content", "param", "problem"),
    [
        ([], "input", "must hold one clip"),
        ([Text("a cat")], "input", "holds text"),
        ([Image(clip(1)[0]), Image(clip(1)[0])], "input", "one clip"),
        ([Video(clip(0), 25.0)], "input", r"none of them 0; got uint8 \[0, 40, 50, 3\]"),
        ([Tensor("frames", clip(2).astype(np.float32))], "frames", "must be uint8"),
        ([Tensor("frames", clip(2)), Tensor("pixels", nan_pixels())], "pixels", "say the same thing"),
        ([Tensor("pixels", np.zeros((2, 3, 64, 48), np.float32))], "pixels", r"float32 \[n, 3, 64, 64\]; got .*48\]"),
        ([Tensor("pixels", nan_pixels())], "pixels", r"\[1, 2, 3, 4\] holds nan"),
        ([Tensor("pixel", nan_pixels())], "pixel", "did you mean 'pixels'"),
        ([Video(clip(MOST_FRAMES + 1, 2, 2), 25.0)], "frames", "'frames' picks some"),
    ],
)
def test_a_wrong_clip_is_refused_with_the_field(processor, content, param, problem):
    with pytest.raises(InvalidRequest, match=problem) as caught:
        prepare(processor, *content)
    assert caught.value.param == param


def test_more_frames_than_there_are_are_refused(processor):
    with pytest.raises(InvalidRequest, match="'frames' is 4, but the clip has 3") as caught:
        prepare(processor, Video(clip(3), 25.0), frames=4)
    assert caught.value.param == "frames"


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        (np.array([0, 16]), "names token 16; the clip has tokens 0 to 15"),
        (np.array([-1, 3]), "names token -1"),
        (np.array([3, 5, 3]), "names token 3 twice"),
        (np.zeros(0, np.int64), "n at least 1"),
        (np.array([[1, 2]]), r"got int64 \[1, 2\]"),
        (np.array([1.0]), "got float64"),
    ],
)
@pytest.mark.parametrize("name", ["context_mask", "target_mask"])
def test_a_wrong_mask_is_refused_with_its_name(processor, name, mask, problem):
    with pytest.raises(InvalidRequest, match=problem) as caught:
        prepare(processor, Video(clip(3), 25.0), Tensor(name, mask), task="predict")
    assert caught.value.param == name


def test_a_mask_without_a_prediction_is_refused(processor):
    with pytest.raises(InvalidRequest, match="not for task 'encode'"):
        prepare(processor, Image(clip(1)[0]), Tensor("target_mask", np.array([0])))


@settings(deadline=None)
@given(st.integers(1, 9), st.data())
def test_masks_of_known_tokens_are_taken_as_they_are(processor, frames, data):
    tokens = max(frames // 2, 1) * 16
    numbers = st.lists(st.integers(0, tokens - 1), min_size=1, max_size=8, unique=True)
    masks = {name: np.array(data.draw(numbers)) for name in ("context_mask", "target_mask")}
    given = [Tensor(name, mask) for name, mask in masks.items()]
    prepared = prepare(processor, Video(clip(frames, 8, 8), 25.0), *given, task="predict")
    for name, mask in masks.items():
        np.testing.assert_array_equal(prepared.inputs[name][0], mask)


def test_labels_are_listed_the_likeliest_first(processor, config):
    params = {"task": "classify", "labels": 2}
    renderer = processor.render(Prepared(inputs={"pixels": [np.zeros((2, 3, 64, 64))]}, params=params))
    text = renderer.output("text", np.log(np.array([0.1, 0.2, 0.4, 0.3], np.float32))).text
    assert text.splitlines() == [f"0.4000 {config.head.labels[2]}", f"0.3000 {config.head.labels[3]}"]
    assert renderer.usage({}) == {"input_tokens": 16, "output_tokens": 0}
