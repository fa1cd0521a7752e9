"""Logits of the reference fixture that the speech model's plugin keeps: one published checkpoint in miniature."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mstar_core.nn.llama import load_llama
from mstar_core.nn.llama_config import LlamaConfig

FIXTURE = Path(__file__).parents[2] / "plugins/mstar-orpheus/tests/data/orpheus"

pytestmark = pytest.mark.golden


@pytest.fixture(scope="module")
def cases():
    return load_file(FIXTURE / "cases.safetensors")


@pytest.mark.parametrize("case", ["lm_random", "lm_0", "lm_1", "lm_2"])
@torch.inference_mode()
def test_logits_of_the_fixture_are_the_recorded_ones_at_every_position(cases, case, one_sequence):
    config = LlamaConfig.read(FIXTURE / "llm")
    model = load_llama(FIXTURE / "llm", config, device=torch.device("cpu"), dtype=torch.float32)
    random = case == "lm_random"
    ids = cases[f"{case}/{'input_ids' if random else 'prompt_ids'}"]
    expected = cases[f"{case}/{'logits' if random else 'prefill_logits'}"]
    logits = model.logits(model(ids, one_sequence(len(ids))))
    torch.testing.assert_close(logits, expected, atol=5e-5, rtol=0)


def test_the_older_spelling_of_the_fixture_reads_as_the_newer():
    older = json.loads((FIXTURE / "llm/config_hub_style.json").read_text())
    assert LlamaConfig.parse(older) == LlamaConfig.read(FIXTURE / "llm")
