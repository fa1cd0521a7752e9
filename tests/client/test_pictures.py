"""Pictures, progress and roles through `mstar_core.Engine`, with the toy painter."""

import numpy as np
import pytest

from mstar_core import Engine, read_media
from mstar_core.errors import ConfigurationError
from mstar_core.spec.content import Image, Progress, Text
from mstar_core.testing import toy_painter
from mstar_core.testing.plugins import registry_with

RED = Image(np.full((2, 4, 3), (255, 0, 0), np.uint8))


@pytest.fixture(scope="module")
def engine():
    with Engine("toy-painter", registry=registry_with(toy_painter)) as engine:
        yield engine


def test_progress_is_told_and_is_no_content(engine):
    told = []
    result = engine.generate("A circle.", on_progress=told.append, steps=3)
    assert told == [Progress(1, 3), Progress(2, 3), Progress(3, 3)]
    assert [type(content) for content in result.contents if not isinstance(content, Text)] == [Image]


def test_stream_gives_progress_on_the_way(engine):
    pieces = list(engine.stream("A circle.", outputs=["image"], steps=2))
    assert pieces[:2] == [Progress(1, 2), Progress(2, 2)]
    assert isinstance(pieces[2], Image)


def test_progress_does_not_come_for_what_is_not_made(engine):
    assert all(isinstance(piece, Text) for piece in engine.stream("A circle.", outputs=["text"]))


def test_content_keeps_its_order_and_roles(engine):
    said = [Text("Be brief.", role="system"), RED, "What is it?"]
    assert engine.generate(said, outputs=["text"]).text.splitlines() == [
        "system: Be brief.",
        "user: <4x2 [255, 0, 0]>",
        "user: What is it?",
    ]


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".jpeg", ".webp", ".PNG"])
def test_pictures_are_written_as_their_suffix_says(engine, tmp_path, suffix):
    result = engine.generate("A circle.", outputs=["image"], width=32, height=16)
    path = tmp_path / f"circle{suffix}"
    assert result.write_images(path) == [path]
    assert read_media(path).pixels.shape == (16, 32, 3)


def test_several_pictures_are_numbered(engine, tmp_path):
    result = engine.generate("A circle.", outputs=["image"])
    several = type(result)((*result.contents, RED), result.finish_reason, result.usage)
    paths = several.write_images(tmp_path / "circle.png")
    assert [path.name for path in paths] == ["circle-1.png", "circle-2.png"]
    np.testing.assert_array_equal(read_media(paths[1]).pixels, RED.pixels)


def test_what_cannot_be_written_is_refused(engine, tmp_path):
    result = engine.generate("A circle.", outputs=["text"])
    with pytest.raises(ValueError, match="no image"):
        result.write_images(tmp_path / "a.png")
    with pytest.raises(ConfigurationError, match=r"\.png, \.jpg, \.jpeg, \.webp"):
        engine.generate("A circle.", outputs=["image"]).write_images(tmp_path / "a.txt")
