"""`mstar run` with the toy painter: what it is shown and told, in that order, and pictures as files."""

import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from mstar_core import read_media
from mstar_core.cli import main
from mstar_core.testing.clips import clip_file, image_file, moving
from mstar_core.testing.distributions import install
from mstar_core.testing.plugins import environment

PAINTER = "from mstar_core.testing.toy_painter import *\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The toy painter is the model that is installed; the working directory has a red and a blue picture."""
    directory = tmp_path / "site"
    install(directory, "mstar-toy-painter", PAINTER)
    work = tmp_path / "work"
    work.mkdir()
    for name, colour in {"red": (255, 0, 0), "blue": (0, 0, 255)}.items():
        (work / f"{name}.png").write_bytes(image_file(np.full((2, 4, 3), colour, np.uint8)))
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setenv("MSTAR_PLUGINS", "mstar-toy-painter")
    monkeypatch.chdir(work)
    yield directory
    sys.modules.pop("mstar_toy_painter", None)


@pytest.fixture
def run(site, capsys):
    """Runs `mstar run toy-painter ...`: the exit status, stdout and stderr."""

    def call(*arguments):
        status = main(["run", "toy-painter", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_picture_goes_to_the_file_and_one_line_says_what_was_made(run):
    status, out, err = run("A red circle.", "-o", "out.png", "--width", "32", "--height", "16", "--steps", "2")
    assert (status, err) == (0, "")
    assert out.startswith("out.png: 32x16 pixels; ended with 'stop' after ")
    assert read_media("out.png").pixels.shape == (16, 32, 3)


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("jpg", b"\xff\xd8\xff"), ("webp", b"RIFF")])
def test_the_suffix_names_the_format(run, suffix, magic):
    assert run("A circle.", "-o", f"out.{suffix}")[0] == 0
    with open(f"out.{suffix}", "rb") as file:
        assert file.read().startswith(magic)


RED, BLUE = "user: <4x2 [255, 0, 0]>", "user: <4x2 [0, 0, 255]>"


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["--image", "red.png", "what is this?"], [RED, "user: what is this?"]),
        (["what is this?", "--image", "red.png"], ["user: what is this?", RED]),
        (["a", "--image=red.png", "b", "--image", "blue.png", "c"], ["user: a", RED, "user: b", BLUE, "user: c"]),
        (["a", "red.png", "--steps", "2", "--image", "blue.png"], ["user: a", RED, BLUE]),
        (["--image", "red.png", "blue.png", "--image", "red.png"], [RED, BLUE, RED]),
    ],
)
def test_texts_and_pictures_keep_the_order_of_the_command_line(run, arguments, lines):
    status, _, err = run(*arguments, "-o", "out.txt")
    assert status == 0, err
    with open("out.txt", encoding="utf-8") as file:
        assert file.read().splitlines() == lines


def test_without_a_name_text_is_printed_and_the_picture_is_named_like_the_model(run):
    status, out, _ = run("A circle.")
    assert status == 0
    assert [line.partition(":")[0] for line in out.splitlines()] == ["user", "toy-painter.png"]


def test_a_directory_takes_what_has_files(run, tmp_path):
    (tmp_path / "work" / "made").mkdir()
    status, out, _ = run("A circle.", "-o", "made")
    assert status == 0
    assert "user: A circle." in out
    assert read_media("made/toy-painter.png").pixels.shape == (48, 64, 3)


def test_json_tells_of_pictures(run):
    told = json.loads(run("A circle.", "-o", "out.png", "--json")[1])
    assert told["written"] == {"image": "out.png"}
    assert told["images"] == [{"width": 64, "height": 48}]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["a", "-o", "out.bmp"], "known are"),
        (["a", "-o", "out.wav"], "makes text, image, not audio"),
        (["a", "-o", "nowhere/out.png"], "there is no directory nowhere"),
        (["--image", "missing.png"], "missing.png: cannot be read"),
        (["--image", "clip.mp4"], "no picture that stands still"),
        (["--image", "red.txt"], "no picture that stands still"),
        (["a", "--width", "17"], "multiple of 16"),
        (["a", "--image"], "requires an argument"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_is_refused(run, arguments, hint):
    with open("clip.mp4", "wb") as file:
        file.write(clip_file(moving()))
    with open("red.txt", "w", encoding="utf-8") as file:
        file.write("red")
    status, _, err = run(*arguments)
    assert status == 2
    assert hint in err


def test_a_picture_before_the_model_is_refused(site, capsys):
    assert main(["run", "--image", "red.png", "toy-painter"]) == 2
    assert "name the model first" in capsys.readouterr().err


def test_a_terminal_shows_a_bar_and_keeps_nothing_of_it(site, tmp_path):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "mstar_core", "run", "toy-painter", "A circle.", "-o", "out.png"]
    variables = environment([site], ["mstar-toy-painter"]) | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [*command, "--steps", "20", "--delay-ms", "50"],
        cwd=tmp_path / "work",
        env=variables,
        stdout=subprocess.PIPE,
        stderr=follower,
    )
    os.close(follower)
    seen = b""
    try:
        while piece := os.read(leader, 4096):
            seen += piece
    except OSError:  # how Linux says that the last process has closed a terminal
        pass
    os.close(leader)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.startswith(b"out.png: 64x48 pixels")
    assert b"/20" in seen
    assert "━".encode() in seen
