import shutil

import pytest
import torch

pytestmark = pytest.mark.golden


def test_greedy_ids_and_their_logits_are_the_references(overheard, spoken, cases):
    for name, case in spoken.items():
        overheard.node.heard.clear()
        ids, logits = overheard.generate(torch.tensor(case["prompt_ids"]), most=len(case["tokens"]) + 1)
        assert ids == case["tokens"]
        torch.testing.assert_close(logits, cases[f"{name}/step_logits"], atol=1e-3, rtol=0)


@pytest.mark.parametrize("spelling", ["config.json", "config_hub_style.json"])
def test_teacher_forced_logits_are_the_references_in_both_spellings_of_the_config(
    tmp_path, golden_dir, teacher_forced, cases, spelling
):
    shutil.copytree(golden_dir, tmp_path / "copy")
    shutil.copy(golden_dir / "llm" / spelling, tmp_path / "copy" / "llm" / "config.json")
    outputs = teacher_forced(tmp_path / "copy").call("prefill", cases["lm_random/input_ids"])
    torch.testing.assert_close(outputs["logits"].tensor(), cases["lm_random/logits"], atol=1e-3, rtol=0)


def test_prompts_are_laid_out_as_in_training(registry, golden_dir, spoken):
    card = registry.card("orpheus")
    owner = registry.owner("orpheus")
    processor = owner.processor(card, owner.config(card, golden_dir), golden_dir)
    for case in spoken.values():
        assert processor.prompt(case["voice"], case["text"]).tolist() == case["prompt_ids"]
