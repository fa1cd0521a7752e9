"""How many media one request may have, and how much they may take together, whatever the route."""

import base64

import numpy as np
import pytest

from mstar_core.errors import InvalidRequest, TooLarge
from mstar_core.media import MediaLimits, encode_audio
from mstar_core.server.parts import PartReader
from mstar_core.server.uploads import Uploads
from mstar_core.spec.content import Audio, Image
from mstar_core.testing.clips import clip_file, image_file, moving

PICTURE = image_file(np.zeros((10, 20, 3), np.uint8))  # 600 bytes of pixels
SOUND = encode_audio(np.zeros(2400, np.float32), "wav", 24_000)


def reader(**limits):
    return PartReader(MediaLimits(**limits), Uploads({}))


def test_as_many_media_as_the_limit_are_read_and_one_more_is_refused():
    three = reader(media=3)
    three.image_file(PICTURE, "a")
    three.audio_file(SOUND, "b")
    three.video_file(clip_file(moving()), "c")
    for read in (three.image_file, three.audio_file, three.video_file):
        with pytest.raises(InvalidRequest, match="more than the 3") as caught:
            read(PICTURE, "input.3")
        assert caught.value.param == "input.3"


def test_media_keep_to_the_limit_of_memory_together():
    two = reader(decoded_bytes=1200)
    assert isinstance(two.image_file(PICTURE, "a"), Image)
    assert isinstance(two.image_file(PICTURE, "b"), Image)
    with pytest.raises(TooLarge, match="up to this one take 1800 bytes; at most 1200") as caught:
        two.image_file(PICTURE, "c")
    assert caught.value.param == "c"


def test_texts_and_pixels_as_values_are_not_counted_as_files():
    one = reader(media=1)
    raw = {"shape": [1, 1, 3], "dtype": "uint8", "data": base64.b64encode(bytes(3)).decode()}
    for index in range(3):
        one.content({"type": "text", "text": "a"}, f"{index}")
        one.content({"type": "image", **raw}, f"{index}")
    assert isinstance(one.content({"type": "audio", "data": base64.b64encode(SOUND).decode()}, "3"), Audio)
