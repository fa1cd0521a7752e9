import io

import numpy as np
import PIL.Image
import pytest

from mstar_core.media import MediaLimits, MediaTooLarge, UndecodableImage, decode_image
from mstar_core.testing.clips import clip_file, image_file, moving

PICTURE = moving(3)[2]
FORMATS = ["png", "jpeg", "webp", "gif"]


def saved(image, format="png", **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize("format", FORMATS)
def test_picture_of_each_format_is_read(format):
    pixels = decode_image(image_file(PICTURE, format))
    assert (pixels.dtype, pixels.shape) == (np.uint8, (32, 48, 3))
    assert np.abs(pixels.astype(int) - PICTURE).mean() < 6
    assert pixels.flags.writeable


def test_exif_rotation_is_applied():
    image = PIL.Image.fromarray(PICTURE)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # turn clockwise to look at it
    assert np.array_equal(decode_image(saved(image, exif=exif)), np.rot90(PICTURE, -1))


def test_cmyk_and_grey_become_rgb():
    cmyk = decode_image(saved(PIL.Image.fromarray(PICTURE).convert("CMYK"), "jpeg", quality=95))
    assert np.abs(cmyk.astype(int) - PICTURE).mean() < 12
    grey = PIL.Image.fromarray(PICTURE[..., 0])
    assert np.array_equal(decode_image(saved(grey)), PICTURE[..., :1].repeat(3, axis=2))


def test_palette_becomes_rgb_and_its_transparent_colour_white():
    image = PIL.Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((1, 0), 1)
    assert decode_image(saved(image)).tolist() == [[[255, 0, 0], [0, 255, 0]]]
    for format in ("png", "gif"):
        assert decode_image(saved(image, format, transparency=1)).tolist() == [[[255, 0, 0], [255, 255, 255]]]


def test_alpha_is_laid_on_white():
    image = PIL.Image.new("RGBA", (3, 1))
    for x, alpha in enumerate((0, 128, 255)):
        image.putpixel((x, 0), (255, 0, 0, alpha))
    assert decode_image(saved(image)).tolist() == [[[255, 255, 255], [255, 127, 127], [255, 0, 0]]]


def test_sixteen_bits_of_grey_become_eight():
    image = PIL.Image.fromarray(np.array([[0, 0x8000, 0xFFFF]], np.uint16))
    assert decode_image(saved(image))[0, :, 0].tolist() == [0, 128, 255]


def test_animated_gif_is_its_first_frame():
    frames = [PIL.Image.fromarray(frame) for frame in moving(4)]
    data = saved(frames[0], "gif", save_all=True, append_images=frames[1:])
    assert np.abs(decode_image(data).astype(int) - moving(1)[0]).mean() < 6


@pytest.mark.parametrize("size", [(1, 1), (20_000, 1), (1, 20_000)])
@pytest.mark.parametrize("format", ["png", "jpeg", "gif"])
def test_odd_sizes_are_read(size, format):
    assert decode_image(saved(PIL.Image.new("RGB", size, "red"), format)).shape == (size[1], size[0], 3)


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"text named .png", b"BM" + bytes(60), b"%PDF-1.4", b"file:///etc/passwd"]
)
def test_bytes_that_are_no_picture_are_refused_with_the_readable_formats(data):
    with pytest.raises(UndecodableImage, match=r"not a picture that can be read \(.*\); send jpeg, png, webp or gif"):
        decode_image(data)


def test_clip_is_no_picture():
    with pytest.raises(UndecodableImage):
        decode_image(clip_file(moving()))


@pytest.mark.parametrize("format", FORMATS)
def test_every_cut_of_a_picture_is_refused(format):
    random = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    whole = image_file(random, format)
    for end in range(0, len(whole) - 200, max(len(whole) // 30, 1)):
        with pytest.raises(UndecodableImage):
            decode_image(whole[:end])


@pytest.mark.parametrize("size", [(1001, 1000), (20_000, 20_000), (60_000, 60_000)])
def test_picture_of_too_many_pixels_is_refused_before_it_is_decoded(size):
    header = bytearray(saved(PIL.Image.new("L", (1, 1))))
    header[16:24] = size[0].to_bytes(4, "big") + size[1].to_bytes(4, "big")
    import zlib

    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    with pytest.raises(MediaTooLarge, match="1000000"):
        decode_image(bytes(header), limits=MediaLimits(frame_pixels=1_000_000))


def test_file_of_too_many_bytes_is_refused():
    with pytest.raises(MediaTooLarge, match=r"the file has \d+ bytes; at most 10 are taken"):
        decode_image(image_file(PICTURE), limits=MediaLimits(file_bytes=10))
