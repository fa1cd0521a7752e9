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


def test_segments_prefilled_on_one_worker_and_decoded_on_another_are_those_of_one_worker(sampling, spoken):
    alone, reader, writer = sampling(), sampling(), sampling()
    frames = 0
    for case in spoken.values():
        prompt = torch.tensor(case["prompt_ids"])
        expected, made = alone.call("prefill", prompt), reader.call("prefill", prompt)
        writer.take_over(reader)
        for _ in range(30):
            expected, made = alone.call("decode", expected["token"]), writer.call("decode", made["token"])
            assert torch.equal(writer.node.heard[-1], alone.node.heard[-1])
            assert made["token"].tensor() == expected["token"].tensor()
            assert made["stop"] == expected["stop"]
            assert made.keys() == expected.keys()
            if "frame" in expected:
                assert torch.equal(made["frame"], expected["frame"])
                frames += 1
        reader.take_over(writer)
    assert frames


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
