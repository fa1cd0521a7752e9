"""The code in README.md and docs/ is run as it is written."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mstar_core.client.service import Service
from mstar_core.plugins.discovery import GROUP
from mstar_core.testing import toy_painter, toy_world
from mstar_core.testing.clips import clip_file, image_file, moving
from mstar_core.testing.distributions import install
from mstar_core.testing.plugins import environment, registry_with
from mstar_core.testing.server import http_server

ROOT = Path(__file__).parent.parent


def python_blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def files_of(path):
    """Files that a page shows: a line that begins with the file's name, some prose, and the block after it."""
    shown = re.findall(r"^`([\w./-]+)` [^`]*?(?:`[^`\n]+`[^`]*?)*\n\n```\w+\n(.*?)^```", path.read_text(), re.M | re.S)
    return dict(shown)


@pytest.fixture(scope="module")
def morse(tmp_path_factory):
    """Runs a command where the plugin of docs/plugins.md is installed."""
    site = tmp_path_factory.mktemp("site")
    files = files_of(ROOT / "docs" / "plugins.md")
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    package = {name.removeprefix("src/mstar_morse/"): text for name, text in files.items()}
    info = install(site, project["name"], "", version=project["version"], files=package)
    (entry,) = project["entry-points"][GROUP].items()
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entry[0]} = {entry[1]}\n")

    def run(*command):
        variables = environment([site], [project["name"]])
        return subprocess.run(
            [sys.executable, *command], check=False, cwd=site, env=variables, capture_output=True, text=True
        )

    return run


def test_the_plugin_guides_files_are_found():
    assert set(files_of(ROOT / "docs" / "plugins.md")) == {
        "pyproject.toml",
        "src/mstar_morse/checkpoints/tiny/config.json",
        "src/mstar_morse/plugin.py",
        "src/mstar_morse/processor.py",
        "src/mstar_morse/nodes.py",
    }


def test_the_plugin_guides_model_is_sound(morse):
    result = morse("-m", "mstar_core", "check", "morse")
    assert (result.returncode, result.stdout) == (0, "mstar-morse 0.1.0: ok\n  morse: ok\n"), result.stdout


def test_the_plugin_guides_model_keys_what_it_is_told(morse):
    result = morse("-m", "mstar_core", "run", "morse", "sos", "-o", "sos.wav", "--pitch", "700", "--json")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    units = 2 * (3 * 2 + 2) + (3 * 4 + 2)  # two s and an o
    assert told["audio_seconds"] == pytest.approx(units * 0.06)
    assert (told["finish_reason"], told["usage"]["input_tokens"]) == ("stop", 3)


def test_the_plugin_guides_model_refuses_what_it_has_no_code_for(morse):
    result = morse("-m", "mstar_core", "run", "morse", "s0s")
    assert result.returncode == 2
    assert "'input' has no code for '0'" in result.stderr


def run_block(block, directory, env=None):
    subprocess.run([sys.executable, "-W", "error", "-c", block], check=True, cwd=directory, env=env, timeout=100)


def test_the_readmes_python_runs(tmp_path):
    for plugin in ("mstar_orpheus", "mstar_bagel"):
        pytest.importorskip(plugin)
    client, engine = python_blocks(ROOT / "README.md")
    run_block(engine, tmp_path)
    assert (tmp_path / "hello.flac").read_bytes().startswith(b"fLaC")
    with Service.start(["orpheus", "bagel"]) as service, http_server(service) as url:
        assert "http://127.0.0.1:8000" in client
        run_block(client.replace("http://127.0.0.1:8000", url), tmp_path)
    assert (tmp_path / "hello.mp3").read_bytes().startswith(b"ID3")


REQUESTS = ROOT / "docs" / "requests.md"


@pytest.fixture
def painting(tmp_path):
    """A directory with a picture, where the toy painter is installed, and its environment."""
    (tmp_path / "frame.png").write_bytes(image_file(moving(1)[0]))
    install(tmp_path, "mstar-toy-painter", "from mstar_core.testing.toy_painter import *\n")
    return tmp_path, environment([tmp_path], ["mstar-toy-painter"])


def test_the_python_of_the_page_on_requests_talks_and_paints(painting):
    directory, variables = painting
    over_http, engine, *_ = python_blocks(REQUESTS)
    with Service.start(["toy-painter"], registry=registry_with(toy_painter)) as service, http_server(service) as url:
        for block in (over_http, engine):
            code = block.replace("http://127.0.0.1:8000", url).replace('"bagel"', '"toy-painter"')
            run_block(code, directory, env=variables)
    made = {path.name for path in directory.glob("*.*p*")}
    assert made >= {"circle-0.png", "circle-1.png", "after.webp", "circle.png"}


def test_the_commands_of_the_page_on_requests_talk_and_paint(painting):
    directory, variables = painting
    commands = re.findall(r"^    mstar (run bagel .*)$", REQUESTS.read_text(), re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command.replace("bagel", "toy-painter"))
        subprocess.run(
            [sys.executable, "-m", "mstar_core", *words], check=True, cwd=directory, env=variables, timeout=100
        )
        assert (directory / words[words.index("-o") + 1]).exists()


def test_the_python_of_the_page_on_requests_sees_and_imagines(tmp_path):
    *_, over_http, engine = python_blocks(REQUESTS)
    (tmp_path / "frame.png").write_bytes(image_file(moving(1)[0]))
    (tmp_path / "clip.mp4").write_bytes(clip_file(moving()))
    install(tmp_path, "mstar-toy-world", "from mstar_core.testing.toy_world import *\n")
    variables = environment([tmp_path], ["mstar-toy-world"])
    with Service.start(["toy-world"], registry=registry_with(toy_world)) as service, http_server(service) as url:
        for block in (over_http, engine):
            code = block.replace("http://127.0.0.1:8000", url).replace("vjepa2-ac", "toy-world")
            run_block(code, tmp_path, env=variables)
    assert (tmp_path / "latents.safetensors").exists()


def test_links_between_pages_lead_to_files():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("plugins/*/README.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page}: {target}"
