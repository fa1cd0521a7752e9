import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mstar_vjepa.config import MEAN, STD
from mstar_vjepa.pictures import pixels_of_clip, pixels_of_frames

SIZES = st.integers(1, 90)


@settings(deadline=None)
@given(SIZES, SIZES, st.integers(0, 255))
def test_an_even_picture_stays_even_whatever_its_size(height, width, level):
    frames = np.full((2, height, width, 3), level, np.uint8)
    expected = (level / 255 - np.array(MEAN)) / np.array(STD)
    for pixels in (
        pixels_of_clip(frames, shortest=54, crop=(48, 48), mean=MEAN, std=STD),
        pixels_of_frames(frames, size=(48, 64), mean=MEAN, std=STD),
    ):
        np.testing.assert_allclose(
            pixels, np.broadcast_to(expected[:, None, None], pixels.shape[1:])[None].repeat(2, 0), atol=1e-4
        )


@pytest.mark.parametrize("size", [(48, 64), (32, 16)])
def test_a_frame_of_the_models_size_is_only_normalised(size):
    frames = np.random.default_rng(0).integers(0, 256, (1, *size, 3), np.uint8)
    pixels = pixels_of_frames(frames, size=size, mean=MEAN, std=STD)
    expected = (frames / 255 - np.array(MEAN)) / np.array(STD)
    np.testing.assert_allclose(pixels, expected.transpose(0, 3, 1, 2), atol=1e-5)


def test_the_middle_of_a_wide_frame_is_kept():
    frames = np.zeros((1, 10, 30, 3), np.uint8)
    frames[:, :, 10:20] = 255
    pixels = pixels_of_frames(frames, size=(10, 10), mean=(0, 0, 0), std=(1, 1, 1))
    assert (pixels == 1).all()
