from pathlib import Path

import httpx
import pytest
from mstar_qwen_omni import plugin

from mstar_core.client.service import Service
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.spec.placement import check_placement, load_placement
from mstar_core.testing.plugins import registry_with
from mstar_core.testing.server import http_server

FILES = sorted((Path(__file__).parents[1] / "placements").glob("*.yaml"))


def test_there_are_files():
    assert {file.stem for file in FILES} >= {"one-worker", "speech-apart", "text-only", "one-gpu"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_fits_the_model(file):
    registry = registry_with(plugin)
    spec = assemble(registry, "qwen-omni", locate(registry.card("qwen-omni"), None))
    check_placement(load_placement(file), [spec])


def test_without_talker_and_vocoder_text_is_served_and_speech_is_refused():
    placement = load_placement(next(file for file in FILES if file.stem == "text-only"))
    with (
        Service.start(["qwen-omni"], registry=registry_with(plugin), placement=placement) as service,
        http_server(service) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        asked = {"model": "qwen-omni", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4}
        (choice,) = http.post("/v1/chat/completions", json=asked).json()["choices"]
        assert len(choice["message"]["content"]) == 4
        spoken = http.post("/v1/chat/completions", json={**asked, "modalities": ["text", "audio"]})
        read = http.post("/v1/audio/speech", json={"model": "qwen-omni", "input": "Hello."})
        for answer, param in ((spoken, "modalities"), (read, "model")):
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
            assert "makes text, not" in answer.json()["error"]["message"]
