"""`mstar run` with files and tensors, and the toy world as the installed model."""

import json
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mstar_core.cli import main
from mstar_core.media import encode_audio
from mstar_core.testing.clips import clip_file, image_file, moving
from mstar_core.testing.distributions import install

STATES = np.array([[1, 2, 3, 4, 5, 6, 7.5]], np.float32)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs `mstar run toy-world ...` in a directory with some files: the exit status, stdout and stderr."""
    site, work = tmp_path / "site", tmp_path / "work"
    install(site, "mstar-toy-world", "from mstar_core.testing.toy_world import *\n")
    work.mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("MSTAR_PLUGINS", "mstar-toy-world")
    monkeypatch.chdir(work)
    (work / "clip.mp4").write_bytes(clip_file(moving()))
    (work / "frame.png").write_bytes(image_file(moving(1)[0]))
    (work / "cut.png").write_bytes(image_file(moving(1)[0])[:60])
    (work / "sound.wav").write_bytes(encode_audio(np.zeros(2400, np.float32), "wav", 24_000))
    (work / "notes.text").write_text("hello")
    save_file({"states": STATES, "others": STATES + 1}, "robot.safetensors")
    np.save("actions.npy", STATES)

    def call(*arguments, command="run"):
        status = main([command, "toy-world", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    yield call
    sys.modules.pop("mstar_toy_world", None)


def test_a_clip_becomes_latents_in_a_file(run):
    status, out, err = run("clip.mp4", "-o", "latents.safetensors", "--task", "encode")
    assert (status, err) == (0, "")
    said, written = out.splitlines()
    assert said == "saw 1 things"
    assert written.startswith("latents.safetensors: latents float32[2]; ended with 'stop' after ")
    assert load_file("latents.safetensors")["latents"][0] == 6 * 32 * 48 * 3


def test_a_picture_and_tensors_become_a_rollout_with_its_steps_together(run):
    tensors = ("--tensor", "states=robot.safetensors", "--tensor", "actions=actions.npy")
    status, out, _ = run("frame.png", *tensors, "--horizon", "5", "-o", "out.safetensors", "--json")
    told = json.loads(out)
    assert status == 0
    assert told["tensors"] == {"latents": {"dtype": "float32", "shape": [5, 2]}}
    latents = load_file("out.safetensors")["latents"]
    assert latents[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert latents[0, 1] == float(moving(1).sum()) + 2 * STATES.sum()


def test_a_tensor_of_another_name_in_its_file_is_named_by_its_key(run):
    run("--tensor", "states=robot.safetensors:others", "--task", "encode", "-o", "out.safetensors")
    assert load_file("out.safetensors")["latents"].tolist() == [7, STATES.sum() + 7]


def test_inputs_reach_the_model_in_their_order(run):
    _, out, _ = run("frame.png", "clip.mp4", "frame.png", "--task", "encode", "--json")
    assert json.loads(out)["text"] == "saw 3 things"
    assert load_file("toy-world.safetensors")["latents"][::2].tolist() == [32 * 48 * 3, 6 * 32 * 48 * 3, 32 * 48 * 3]


def test_a_trace_takes_the_same_inputs(run):
    status, out, _ = run("clip.mp4", "--tensor", "mask=actions.npy", "--task", "encode", command="trace")
    assert status == 0
    assert "input seen: float32[2]" in out
    assert "input mask: float32[1, 7]" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'INPUT...'"),
        (["clp.mp4"], "clp.mp4: cannot be read: No such file or directory"),
        (["my clip.mp4"], "my clip.mp4: model 'toy-world' takes video, image, tensor, not text; no file has that name"),
        (["hello"], "hello: model 'toy-world' takes video, image, tensor, not text"),
        (["sound.wav"], "sound.wav: model 'toy-world' takes video, image, tensor, not audio"),
        (["notes.text"], "notes.text: cannot tell what to read from the suffix '.text' (did you mean '.txt'?)"),
        (["cut.png"], "cut.png: the png data cannot be decoded"),
        (["robot.safetensors"], "tensors are given by name: --tensor NAME=robot.safetensors"),
        (["clip.mp4", "--tensor", "states"], "must be NAME=FILE or NAME=FILE:KEY"),
        (["clip.mp4", "--tensor", "=x.npy"], "must be NAME=FILE or NAME=FILE:KEY"),
        (["clip.mp4", "--tensor", "states=absent.npy"], "absent.npy: cannot be read: No such file"),
        (["clip.mp4", "--tensor", "states=robot.safetensor"], "'.safetensor' (did you mean '.safetensors'?)"),
        (["clip.mp4", "--tensor", "x=robot.safetensors"], "no tensor 'x'; there are: "),
        (["clip.mp4", "--tensor", "states=robot.safetensors:stats"], "no tensor 'stats' (did you mean 'states'?)"),
        (["clip.mp4", "--tensor", "states=frame.png"], "known are .safetensors, .npy"),
        (["clip.mp4", "--tensor", "stats=actions.npy"], "unknown tensor 'stats' (did you mean 'states'?)"),
    ],
)
def test_an_input_that_cannot_be_exits_2_with_a_pointed_message(run, tmp_path, arguments, message):
    before = sorted((tmp_path / "work").iterdir())
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert sorted((tmp_path / "work").iterdir()) == before
