import json

import pytest
from mstar_orpheus.config import OrpheusConfig, llm_directory
from mstar_orpheus.processor import OrpheusProcessor
from tokenizers import Tokenizer

from mstar_core.errors import InvalidRequest
from mstar_core.plugins.assemble import locate
from mstar_core.spec.content import Audio, Text

PARAMS = {"voice": "leo", "max_tokens": 100}


@pytest.fixture(scope="module", params=["fixture", "tiny"])
def processor(request, fixture_dir, registry):
    checkpoint = fixture_dir if request.param == "fixture" else locate(registry.card("orpheus"))
    return OrpheusProcessor(OrpheusConfig.read(checkpoint), checkpoint)


def text_ids(text):
    """Both tokenizers' ids of a text: one per byte, in the order of the byte alphabet's characters."""
    return len(text.encode())


def test_a_prompt_is_framed_by_the_ids_of_training(processor):
    ids = processor._config.ids
    prompt = processor.prompt("leo", "Hi.").tolist()
    assert prompt[:2] == [ids.custom + 3, ids.begin_of_text]
    assert prompt[-4:] == [ids.end_of_turn, ids.custom + 4, ids.custom + 5, ids.custom + 1]
    assert len(prompt) == 6 + text_ids("leo: Hi.")


@pytest.mark.parametrize(
    "text", ["<|eot_id|>", "<custom_token_3>", "a<custom_token_2>b", "<|begin_of_text|>", "<custom_token_10>" * 7]
)
def test_text_that_looks_like_a_special_token_stays_text(processor, text):
    said = processor.prompt("leo", text)[2:-4]
    assert said.max() < 256
    assert len(said) == text_ids(f"leo: {text}")


@pytest.mark.parametrize("text", ["Hello there.", "Oh <laugh> no <sigh>", "ünïcødé 🎉", "  two  spaces\n"])
def test_text_ids_are_those_of_the_whole_tokenizer(fixture_dir, text):
    processor = OrpheusProcessor(OrpheusConfig.read(fixture_dir), fixture_dir)
    whole = Tokenizer.from_file(str(fixture_dir / "llm" / "tokenizer.json"))
    said = processor.prompt("leo", text)[2:-4].tolist()
    assert said == whole.encode(f"leo: {text}", add_special_tokens=False).ids


@pytest.mark.parametrize("text", ["", " \n ", "\x00\x01", "\u200b"])
def test_text_with_nothing_to_say_is_refused(processor, text):
    with pytest.raises(InvalidRequest, match="nothing that can be spoken") as caught:
        processor.prepare([Text(text)], PARAMS)
    assert caught.value.param == "input"


def test_half_a_character_is_refused_with_its_place(processor):
    with pytest.raises(InvalidRequest, match="position 2"):
        processor.prepare([Text("ab\ud800")], PARAMS)


@pytest.mark.parametrize("content", [[], [Text("a"), Text("b")], [Audio(None, 24000)]])
def test_anything_but_one_text_is_refused(processor, content):
    with pytest.raises(InvalidRequest, match="one text"):
        processor.prepare(content, PARAMS)


@pytest.mark.parametrize("text", ["x" * 50_000, "Ein Satz. " * 5_000, "🎉" * 12_000, "一句话。" * 10_000])
def test_long_text_becomes_prompts_that_fit_the_model(processor, text):
    prompts = processor.prepare([Text(text)], {"voice": "tara", "max_tokens": 512}).inputs["prompt"]
    assert len(prompts) > 1
    assert max(len(prompt) for prompt in prompts) + 512 <= processor._config.llama.positions


def test_blank_stretches_of_a_long_text_make_no_prompt_of_their_own(processor):
    text = "One." + " " * 2_000 + "Two."
    prompts = processor.prepare([Text(text)], PARAMS).inputs["prompt"]
    assert [len(prompt) for prompt in prompts] == [6 + text_ids("leo: One.")] * 2


def test_more_tokens_than_positions_are_refused_with_what_fits(processor):
    positions = processor._config.llama.positions
    fits = positions - 6 - text_ids("leo: Hi.")
    assert processor.prepare([Text("Hi.")], {"voice": "leo", "max_tokens": fits})
    with pytest.raises(InvalidRequest, match=f"at most {fits} fit") as caught:
        processor.prepare([Text("Hi.")], {"voice": "leo", "max_tokens": fits + 1})
    assert caught.value.param == "max_tokens"


def test_custom_tokens_that_are_not_called_special_stay_text_too(tmp_path, fixture_dir):
    values = json.loads((llm_directory(fixture_dir) / "tokenizer.json").read_text())
    for token in values["added_tokens"]:
        token["special"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    (tmp_path / "config.json").write_text((fixture_dir / "llm" / "config.json").read_text())
    processor = OrpheusProcessor(OrpheusConfig.read(fixture_dir), tmp_path)
    assert processor.prompt("leo", "<custom_token_2>")[2:-4].max() < 256
