"""`mstar run` with the scripted model, in this process: what it writes, what it says, and how it refuses."""

import io
import json
import signal
import subprocess
import sys
import time

import av
import numpy as np
import pytest
from safetensors.numpy import load_file

from mstar_core.cli import main
from mstar_core.testing.distributions import install
from mstar_core.testing.plugins import environment
from mstar_core.testing.scripted import ITEM_SAMPLES, RATE

SCRIPTED = "from mstar_core.testing.scripted import *\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The scripted model is the one that is installed; the working directory is empty."""
    directory = tmp_path / "site"
    install(directory, "mstar-scripted", SCRIPTED)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setenv("MSTAR_PLUGINS", "mstar-scripted")
    monkeypatch.chdir(work)
    yield directory
    sys.modules.pop("mstar_scripted", None)


@pytest.fixture
def run(site, capsys):
    """Runs `mstar run scripted ...`: the exit status, stdout and stderr."""

    def call(*arguments):
        status = main(["run", "scripted", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def samples_in(path):
    with av.open(str(path)) as container:
        return sum(frame.samples for frame in container.decode(audio=0))


def test_audio_goes_to_the_file_and_one_line_says_what_was_made(run, tmp_path):
    status, out, err = run("hello", "-o", "hello.wav", "--items", "100", "--seed", "1")
    assert (status, err) == (0, "")
    length = 100 * ITEM_SAMPLES / RATE
    assert out.startswith(f"hello.wav: {length:.2f} s of audio at {RATE} Hz, real-time factor ")
    assert "; ended with 'stop' after " in out
    assert out.count("\n") == 1
    assert samples_in("hello.wav") == 100 * ITEM_SAMPLES


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "opus", "ogg", "aac", "FLAC"])
def test_the_suffix_names_the_format(run, suffix):
    status, _, _ = run("hello", "-o", f"hello.{suffix}", "--items", "10")
    assert status == 0
    assert samples_in(f"hello.{suffix}") > 0


def test_pcm_is_the_samples_alone(run, tmp_path):
    run("hello", "-o", "hello.pcm", "--items", "10")
    assert (tmp_path / "work" / "hello.pcm").stat().st_size == 2 * 10 * ITEM_SAMPLES


def test_without_a_name_sound_and_tensors_go_to_files_named_like_the_model(run):
    status, out, _ = run("hello", "--items", "4", "--rounds", "3")
    assert status == 0
    assert [line.partition(":")[0] for line in out.splitlines()] == ["scripted.wav", "scripted.safetensors"]
    np.testing.assert_array_equal(load_file("scripted.safetensors")["count"], [1, 2, 3])


def test_json_tells_everything_in_one_object(run):
    status, out, err = run("hello", "-o", "hello.wav", "--items", "100", "--json")
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert told["written"] == {"audio": "hello.wav"}
    assert told["audio_seconds"] == 100 * ITEM_SAMPLES / RATE
    assert told["rate"] == RATE
    assert told["finish_reason"] == "stop"
    assert told["usage"] == {"input_tokens": 0, "output_tokens": 0}
    assert 0 < told["first_content_seconds"] <= told["seconds"]
    assert told["real_time_factor"] == pytest.approx(told["seconds"] / told["audio_seconds"], rel=0.01)


def test_the_loops_bound_is_told_as_the_finish_reason(run):
    _, out, _ = run("hello", "--items", "100", "--max-items", "7", "--json")
    told = json.loads(out)
    assert (told["finish_reason"], told["audio_seconds"]) == ("length", 7 * ITEM_SAMPLES / RATE)


def test_the_same_seed_gives_the_same_bytes_and_parameters_reach_the_model(run, tmp_path):
    for name, extra in {"a": (), "b": (), "c": ("--voice", "high")}.items():
        run("hello", "-o", f"{name}.wav", "--seed", "5", *extra)
    a, b, c = ((tmp_path / "work" / f"{name}.wav").read_bytes() for name in "abc")
    assert a == b != c


def test_text_of_a_dash_is_read_from_stdin(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("from elsewhere"))
    assert run("-", "-o", "hello.wav")[0] == 0


def test_options_may_stand_before_and_after_the_text(site, capsys):
    assert main(["run", "-o", "x.wav", "scripted", "--items", "2", "hello", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("x.wav: ")


def test_help_of_a_model_lists_its_parameters_with_ranges_choices_and_defaults(run):
    status, out, _ = run("--help")
    assert status == 0
    words = " ".join(out.split())
    assert "Request parameters: --voice low|high Sign of the samples. [default: low]" in words
    assert "--items INT Items before the stop signal. [at least 0; at most 100000; default: 5]" in words
    assert "--seed INT Same seed, same output; drawn at random when left out. [at least 0]" in words


CLASHING = (
    SCRIPTED
    + """
@hookimpl
def mstar_config(card, checkpoint):
    clash = Parameter(name="output", kind="bool", default=True, doc="Named like an option of the command.")
    return ModelConfig(values=None, parameters=(*PARAMETERS, clash))
"""
)


def test_a_parameter_named_like_an_option_of_the_command_is_offered_with_a_prefix(tmp_path, monkeypatch, capsys):
    install(tmp_path, "mstar-clashing", CLASHING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MSTAR_PLUGINS", "mstar-clashing")
    assert main(["run", "scripted", "--help"]) == 0
    assert "--param-output / --no-param-output" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hello", "--voice", "hihg"], "'voice' must be one of low, high; got 'hihg' (did you mean 'high'?)"),
        (["hello", "--items", "-1"], "'items' must be at least 0, got -1"),
        (["hello", "--items", "x"], "'x' is not a valid integer"),
        (["hello", "--itmes", "1"], "--itmes"),
        (["hello", "--timeout", "0"], "0.0 is not in the range x>0"),
        (["hello", "-o", "x.wave"], "x.wave: cannot tell what to write from the suffix '.wave' (did you mean '.wav'?)"),
        (["hello", "-o", "x.txt"], "x.txt: model 'scripted' makes audio, tensor, not text"),
        (["hello", "-o", "absent/x.wav"], "there is no directory absent"),
        ([" "], "'input' must not be blank"),
        ([], "Missing argument 'INPUT...'"),
    ],
)
def test_a_wrong_request_exits_2_with_a_pointed_message_and_writes_nothing(run, tmp_path, arguments, message):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert list((tmp_path / "work").iterdir()) == []


def test_an_option_of_the_model_before_the_model_is_refused_with_the_order(site, capsys):
    assert main(["run", "--voice", "low", "scripted", "hello"]) == 2
    assert "name the model first, its own options after it" in capsys.readouterr().err


def test_a_node_that_fails_exits_1_naming_it_and_writes_nothing(run, tmp_path):
    status, _, err = run("hello", "-o", "x.wav", "--fail", "writer")
    assert status == 1
    assert err.startswith("error: ")
    assert "writer" in err
    assert list((tmp_path / "work").iterdir()) == []


def test_a_request_that_outlasts_its_timeout_exits_1_and_writes_nothing(run, tmp_path):
    endless = ("--items", "100000", "--max-items", "100000", "--delay-ms", "1")
    status, _, err = run("hello", "-o", "x.wav", "--timeout", "0.2", *endless)
    assert status == 1
    assert "did not end within 0.2 s" in err
    assert list((tmp_path / "work").iterdir()) == []


def test_a_checkpoint_that_does_not_exist_exits_1(run):
    status, _, err = run("hello", "--checkpoint", "tinyy")
    assert status == 1
    assert "no checkpoint 'tinyy' (did you mean 'tiny'?)" in err


def _hear_interrupts():
    """Undo what a shell does to its background jobs, and they to their children: SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(site, *arguments, plugin="mstar-scripted", **options):
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "mstar_core", "run", "scripted", *arguments],
        env={**environment([site], [plugin]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_interrupts,  # noqa: PLW1509 (it only sets a signal)
        **options,
    )


TELLING = """
import dataclasses
import pathlib

from mstar_core.plugins.hookspecs import hookimpl
from mstar_core.testing import scripted
from mstar_core.testing.scripted import mstar_config, mstar_models, mstar_processor, mstar_state_machine, mstar_walks

@hookimpl
def mstar_nodes(card, config):
    return tuple(
        dataclasses.replace(node, factory="mstar_telling:load") if node.name == "writer" else node
        for node in scripted.NODES
    )

def load(context):
    from mstar_core.testing import scripted_nodes

    class Telling(scripted_nodes.Writer):
        def forward(self, calls):
            pathlib.Path("writing").touch()
            return super().forward(calls)

    return Telling(context)
"""
"""The scripted model, which leaves a file when it begins to write."""


def interrupted_at(process, sign):
    """Exit status, output and errors of a command that got SIGINT when the file `sign` was there."""
    while not sign.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_ctrl_c_ends_the_request_with_status_130_and_no_traceback(tmp_path):
    install(tmp_path, "mstar-telling", TELLING)
    endless = ("--items", "100000", "--max-items", "100000", "--delay-ms", "20", "-o", "x.wav")
    process = start(tmp_path, "hello", *endless, plugin="mstar-telling", cwd=tmp_path)
    status, out, err = interrupted_at(process, tmp_path / "writing")
    assert (status, out) == (130, "")
    assert "Traceback" not in err


SLOW = """
import dataclasses
import pathlib
import time

from mstar_core.plugins.hookspecs import hookimpl
from mstar_core.testing import scripted
from mstar_core.testing.scripted import mstar_config, mstar_models, mstar_processor, mstar_state_machine, mstar_walks

@hookimpl
def mstar_nodes(card, config):
    return tuple(dataclasses.replace(node, factory="mstar_slow:load") for node in scripted.NODES)

def load(context):
    from mstar_core.testing import scripted_nodes

    pathlib.Path("loading").touch()
    time.sleep(1)
    return scripted_nodes.Reader(context)
"""


def test_ctrl_c_while_a_model_loads_ends_quietly_with_status_130(tmp_path):
    install(tmp_path, "mstar-slow", SLOW)
    process = start(tmp_path, "hello", plugin="mstar-slow", cwd=tmp_path)
    status, out, err = interrupted_at(process, tmp_path / "loading")
    assert (status, out, err.strip()) == (130, "", "")


def test_a_reader_that_leaves_is_no_error_with_a_traceback(site):
    process = start(site, "hello", "--json")
    process.stdout.close()
    assert process.wait(60) in (0, 1)
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
