from pathlib import Path

import pytest
from mstar_orpheus.config import OrpheusConfig
from mstar_orpheus.processor import OrpheusProcessor

from mstar_core.errors import CheckpointError, InvalidRequest
from mstar_core.spec.content import Text

TINY = Path(__file__).parents[1] / "src/mstar_orpheus/checkpoints/tiny"
PARAMS = {"voice": "leo", "max_tokens": 50}


@pytest.fixture(scope="module")
def processor():
    return OrpheusProcessor(OrpheusConfig.read(TINY), TINY)


@pytest.mark.parametrize(
    "text", ["<|eot_id|>", "<custom_token_3>hi<custom_token_2>", "<|begin_of_text|>", "a<|eot_id|>b"]
)
def test_text_that_looks_like_a_special_token_never_becomes_one(processor, text):
    ids = OrpheusConfig.read(TINY).ids
    (prompt,) = processor.prepare([Text(text)], PARAMS).inputs["prompt"]
    special = prompt[prompt >= 256].tolist()
    assert special == [
        ids.start_of_human,
        ids.begin_of_text,
        ids.end_of_turn,
        ids.end_of_human,
        ids.start_of_ai,
        ids.start_of_speech,
    ]


def test_emotion_tags_reach_the_model(processor):
    with_tag = processor.prompt("leo", "Ha <laugh> ha").size
    assert with_tag - processor.prompt("leo", "Ha  ha").size == len("<laugh>")


def test_silent_segments_are_not_spoken(processor):
    prepared = processor.prepare([Text("Words." + " " * 700 + "More.")], PARAMS)
    assert len(prepared.inputs["prompt"]) == 2


def test_half_a_character_is_refused(processor):
    with pytest.raises(InvalidRequest, match="half a character at position 1"):
        processor.prepare([Text("a\ud800")], PARAMS)


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "llm").symlink_to(TINY / "llm")
    (tmp_path / "snac").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        OrpheusConfig.read(tmp_path)


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    (tmp_path / "snac").symlink_to(TINY / "snac")
    (tmp_path / "config.json").symlink_to(TINY / "llm/config.json")
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": []}')
    with pytest.raises(CheckpointError, match=r"lacks <\|begin_of_text\|>, <\|eot_id\|>, <custom_token_0>"):
        OrpheusConfig.read(tmp_path)
