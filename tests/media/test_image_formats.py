import io

import numpy as np
import PIL.Image
import pytest

from mstar_core.media import IMAGE_FORMATS, UnencodableImage, decode_image, encode_image
from mstar_core.media.sniff import kind_of

NOISE = np.random.default_rng(0).integers(0, 255, (24, 40, 3)).astype(np.uint8)


@pytest.mark.parametrize("format", IMAGE_FORMATS)
def test_file_is_of_the_format_and_media_type_it_says(format):
    body = encode_image(NOISE, format)
    assert kind_of(body) == format
    assert PIL.Image.open(io.BytesIO(body)).get_format_mimetype() == IMAGE_FORMATS[format].media_type


def test_png_keeps_every_pixel():
    np.testing.assert_array_equal(decode_image(encode_image(NOISE, "png", 0)), NOISE)


@pytest.mark.parametrize("format", ["jpeg", "webp"])
def test_higher_quality_is_larger_and_nearer(format):
    bodies = [encode_image(NOISE, format, quality) for quality in (0, 50, 95, 100)]
    assert sorted(bodies, key=len) == bodies
    errors = [np.abs(decode_image(body).astype(int) - NOISE).mean() for body in bodies]
    assert errors[0] > errors[-1]


def test_pixels_of_any_memory_layout_are_encoded_as_they_are():
    np.testing.assert_array_equal(decode_image(encode_image(NOISE[::2, ::-1], "png")), NOISE[::2, ::-1])


@pytest.mark.parametrize(("format", "longest"), [("jpeg", 65_500), ("webp", 16_383)])
def test_picture_longer_than_the_format_holds_is_refused_with_the_limit(format, longest):
    line = np.zeros((1, longest, 3), np.uint8)
    assert kind_of(encode_image(line, format)) == format
    with pytest.raises(UnencodableImage, match=f"at most {longest} pixels"):
        encode_image(np.zeros((1, longest + 1, 3), np.uint8), format)
    assert kind_of(encode_image(np.zeros((1, longest + 1, 3), np.uint8), "png")) == "png"
