import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st
from mstar_qwen_omni.media.patches import FRAME_MAX_PIXELS, FRAME_MIN_PIXELS, clip_patches, fitted, image_patches

from mstar_core.errors import InvalidRequest


def picture(height, width, seed=0):
    rough = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return np.ascontiguousarray(rough.repeat(8, 0).repeat(8, 1)[:height, :width])


@trials(max_examples=200, deadline=None)
@given(height=st.integers(1, 6000), width=st.integers(1, 6000))
def test_sizes_are_those_of_transformers(height, width, settings):
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    shape = settings.picture
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(InvalidRequest, match="too narrow"):
            fitted(height, width, shape, shape.min_pixels, shape.max_pixels)
        return
    made = fitted(height, width, shape, shape.min_pixels, shape.max_pixels)
    wanted = module.smart_resize(height, width, 32, min_pixels=shape.min_pixels, max_pixels=shape.max_pixels)
    assert made == wanted


def levels(made):
    """Normalised values as they were."""
    found = (made["pixel_values"] + 1) * 127.5
    np.testing.assert_allclose(found, found.round(), atol=1e-3)
    return found.round().astype(np.uint8)


@pytest.fixture(scope="module")
def theirs(settings):
    """Transformers' processor of pictures, with bounds on their pixels."""
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    shape = settings.picture

    def making(fewest=shape.min_pixels, most=shape.max_pixels):
        return module.Qwen2VLImageProcessorPil(
            patch_size=shape.patch,
            temporal_patch_size=shape.frames,
            merge_size=shape.merge,
            size={"shortest_edge": fewest, "longest_edge": most},
            image_mean=shape.mean,
            image_std=shape.std,
        )

    return making


@pytest.mark.parametrize("size", [(64, 96), (70, 101), (33, 250), (20, 20)])
def test_patches_of_a_picture_are_transformers(size, settings, theirs):
    pixels = picture(*size)
    wanted = theirs()(images=pixels, return_tensors="np")
    made = image_patches(pixels, settings.picture)
    assert made.grid == tuple(wanted["image_grid_thw"][0])
    np.testing.assert_array_equal(made.values, levels(wanted))


@pytest.mark.parametrize(("frames", "size"), [(4, (320, 448)), (3, (320, 448)), (1, (64, 96)), (2, (1000, 1800))])
def test_patches_of_a_clip_are_those_of_its_frames_in_pairs(frames, size, settings, theirs):
    clip = np.stack([picture(*size, seed) for seed in range(frames)])
    made = clip_patches(clip, settings.picture)
    of_frames = theirs(FRAME_MIN_PIXELS, FRAME_MAX_PIXELS)
    shown = [*clip, clip[-1]][: frames + frames % 2]  # the last is repeated where one is missing
    singles = [of_frames(images=frame, return_tensors="np") for frame in shown]
    assert made.grid == (len(shown) // 2, *singles[0]["image_grid_thw"][0][1:])
    values = made.values.reshape(len(shown) // 2, -1, 3, 2, 256)  # [steps, patches, channels, frames, pixels]
    for number, single in enumerate(singles):
        wanted = levels(single).reshape(-1, 3, 2, 256)[:, :, 0]
        np.testing.assert_array_equal(values[number // 2, :, :, number % 2], wanted)
