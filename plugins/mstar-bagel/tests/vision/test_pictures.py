import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mstar_bagel.config import Transforms
from mstar_bagel.vision.pictures import fit, fitted_size

RULES = st.sampled_from([Transforms().vae, Transforms().vit])
SIDES = st.integers(1, 20_000)


@given(SIDES, SIDES, RULES)
def test_any_size_becomes_multiples_of_the_stride_within_the_limits(height, width, limits):
    fitted = fitted_size((height, width), limits)
    assert all(side >= limits.stride and side % limits.stride == 0 for side in fitted)
    assert max(fitted) <= limits.longest
    assert fitted[0] * fitted[1] <= limits.max_pixels


@given(SIDES, SIDES, RULES)
def test_a_turned_picture_gets_the_turned_size(height, width, limits):
    assert fitted_size((height, width), limits) == fitted_size((width, height), limits)[::-1]


@given(st.integers(500, 1024), st.integers(500, 1024), RULES)
def test_proportions_are_kept_to_a_stride_where_the_limits_allow_it(height, width, limits):
    fitted = fitted_size((height, width), limits)
    scale = fitted[0] / height
    assert abs(fitted[1] - width * scale) <= limits.stride * (1 + width / height)


@pytest.mark.parametrize(
    ("size", "fitted"), [((1, 1), (512, 512)), ((1, 20_000), (16, 1024)), ((20_000, 1), (1024, 16))]
)
def test_extreme_pictures_get_a_size_that_the_model_takes(size, fitted):
    assert fit(np.zeros((*size, 3), np.uint8), Transforms().vae).shape == (*fitted, 3)


def test_a_picture_of_a_fitting_size_is_left_alone():
    picture = np.zeros((512, 768, 3), np.uint8)
    assert fit(picture, Transforms().vae) is picture


def test_an_even_picture_stays_even():
    resized = fit(np.full((333, 500, 3), 77, np.uint8), Transforms().vit)
    assert (resized == 77).all()
