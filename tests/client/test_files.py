"""Files as inputs of `mstar_core.Engine`."""

import numpy as np
import PIL.Image
import pytest
from safetensors.numpy import load_file, save_file

from mstar_core import Engine, read_media, read_tensor
from mstar_core.client.engine import Result
from mstar_core.errors import ConfigurationError
from mstar_core.media import MediaLimits, encode_audio
from mstar_core.spec.content import Audio, Image, Tensor, Text, Video
from mstar_core.testing import toy_world
from mstar_core.testing.clips import clip_file, image_file, moving
from mstar_core.testing.plugins import registry_with


def test_media_are_read_by_their_suffix(tmp_path):
    files = {
        "a.png": image_file(moving(1)[0]),
        "b.JPG": image_file(moving(1)[0], "jpeg"),
        "c.mp4": clip_file(moving()),
        "d.webm": clip_file(moving(), "webm"),
        "e.wav": encode_audio(np.zeros(2400, np.float32), "wav", 24_000),
        "f.txt": "héllo".encode(),
        "g.gif": image_file(moving(1)[0], "gif"),
    }
    kinds = []
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        kinds.append(type(read_media(tmp_path / name)))
    assert kinds == [Image, Image, Video, Video, Audio, Text, Image]


def test_animated_gif_is_a_clip(tmp_path):
    first, *rest = [PIL.Image.fromarray(frame) for frame in moving(3)]
    first.save(tmp_path / "a.gif", save_all=True, append_images=rest)
    assert read_media(tmp_path / "a.gif").frames.shape == (3, 32, 48, 3)


def test_frames_of_a_clip_are_picked_and_limits_hold(tmp_path):
    (tmp_path / "a.mp4").write_bytes(clip_file(moving()))
    assert len(read_media(tmp_path / "a.mp4", frames=3).frames) == 3
    with pytest.raises(ConfigurationError, match=r"a\.mp4: the clip has more than 5 frames"):
        read_media(tmp_path / "a.mp4", limits=MediaLimits(frames=5))


def test_text_that_is_not_utf_8_is_refused_with_its_path(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match=r"a\.txt: .*utf-8"):
        read_media(tmp_path / "a.txt")


def test_an_engine_takes_what_was_read_and_its_result_is_written_as_it_was_made(tmp_path):
    (tmp_path / "a.mp4").write_bytes(clip_file(moving()))
    save_file({"pose": np.ones((1, 7), np.float32)}, tmp_path / "robot.safetensors")
    inputs = [read_media(tmp_path / "a.mp4"), read_tensor("states", tmp_path / "robot.safetensors")]
    with Engine("toy-world", registry=registry_with(toy_world)) as engine:
        result = engine.generate(inputs, horizon=4)
    assert result.tensors["latents"].shape == (4, 2)
    result.write_tensors(tmp_path / "out.safetensors")
    assert np.array_equal(load_file(tmp_path / "out.safetensors")["latents"], result.tensors["latents"])


def test_result_without_tensors_writes_none(tmp_path):
    with pytest.raises(ValueError, match="there are no tensors to write"):
        Result((Text("a"),), "stop", {}).write_tensors(tmp_path / "x.safetensors")
    assert Result((Tensor("x", np.zeros(1)),), "stop", {}).tensors["x"].shape == (1,)
