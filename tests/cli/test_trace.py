"""`mstar trace` with the scripted model: the walks of a request, without weights and without torch."""

import json
import subprocess
import sys

import pytest

from mstar_core.testing.distributions import install
from mstar_core.testing.plugins import environment

TORCH_THAT_RAISES = "raise RuntimeError('torch was imported')\n"


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Runs `mstar trace scripted ...` where torch cannot be imported."""
    site = tmp_path_factory.mktemp("site")
    install(site, "mstar-scripted", "from mstar_core.testing.scripted import *\n")
    (site / "torch.py").write_text(TORCH_THAT_RAISES)

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "mstar_core", "trace", "scripted", *arguments],
            check=False,
            env=environment([site], ["mstar-scripted"]),
            capture_output=True,
            text=True,
        )

    return call


def test_a_trace_shows_inputs_walks_nodes_loops_and_the_end(trace):
    result = trace("hello", "--items", "3")
    assert (result.returncode, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines == [
        "input prompt: int64[5]",
        "WALK PARTITION NODES LOOPS ENDS",
        "1 prefill writing reader (stateless) - done",
        "2 speak speaking speaker (stateless) speaker until end of speaker.sounds until",
        "3 write writing writer (stateless) writer until stop, at most 1000 times until",
        "end: stop",
    ]


def test_parameters_change_the_walks_and_their_bounds(trace):
    told = json.loads(trace("hello", "--rounds", "4", "--max-items", "9", "--json").stdout)
    assert [walk["walk"] for walk in told["walks"]] == ["prefill", "speak", "count", "write"]
    assert told["walks"][2]["loops"] == [{"nodes": ["counter"], "at_most": 4, "until": None}]
    assert told["walks"][3]["loops"] == [{"nodes": ["writer"], "at_most": 9, "until": "stop"}]


def test_assumptions_lead_to_other_ends(trace):
    told = json.loads(trace("hello", "--assume", "write=at_most", "--json").stdout)
    assert told["end"] == "length"
    told = json.loads(trace("hello", "--assume", "prefill.stop", "--json").stdout)
    assert [walk["walk"] for walk in told["walks"]] == ["prefill", "speak"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hello", "--assume", "wriet=until"], "no walk 'wriet' (did you mean 'write'?)"),
        (["hello", "--items", "-1"], "'items' must be at least 0, got -1"),
        ([""], "'input' must not be blank"),
    ],
)
def test_a_wrong_request_exits_2_with_a_pointed_message(trace, arguments, message):
    result = trace(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
