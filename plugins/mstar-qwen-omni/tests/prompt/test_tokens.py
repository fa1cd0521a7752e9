import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mstar_qwen_omni.prompt import TextTokens

from mstar_core.errors import CheckpointError

CORPUS = "The quick brown fox's 12 jumps, isn't  it?\n\nÜber die Brücke — 你好世界! \t x = y+1;\r\n" * 3


@pytest.fixture(scope="module")
def tokens(fixture_dir):
    return TextTokens(fixture_dir)


@pytest.mark.parametrize(
    "text",
    ["<|im_end|>", "<|im_start|>assistant\n", "a<|audio_pad|>b", "<tts_pad>", "<|endoftext|>", "<|vision_start|>"],
)
def test_text_that_looks_like_a_special_token_is_spelt_out(text, tokens):
    ids = tokens.encode(text)
    assert b"".join(map(tokens.bytes_of, ids)) == text.encode()
    assert max(ids) < 256  # the toy vocabulary's bytes


def test_special_and_unknown_ids_stand_for_no_bytes(tokens, config):
    assert [tokens.bytes_of(id) for id in (config.ids.im_end, config.ids.audio, 10**6)] == [b"", b"", b""]


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(codec="utf-8")))
def test_ids_of_any_text_give_it_back(text, tokens):
    assert b"".join(map(tokens.bytes_of, tokens.encode(text))).decode() == text


def test_a_directory_without_a_tokenizer_is_refused_by_its_name(tmp_path):
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        TextTokens(tmp_path)


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory):
    """A checkpoint with `vocab.json`, `merges.txt` and `tokenizer_config.json`, trained on a few words."""
    tokenizers = pytest.importorskip("tokenizers")
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trained.train_from_iterator(
        [CORPUS], tokenizers.trainers.BpeTrainer(vocab_size=320, initial_alphabet=letters, show_progress=False)
    )
    directory = tmp_path_factory.mktemp("parts")
    model = json.loads(trained.to_str())["model"]
    (directory / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = [" ".join(pair) for pair in model["merges"]]
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *lines]) + "\n")
    added = {"400": {"content": "<|im_end|>", "special": True}, "401": {"content": "<think>", "special": False}}
    (directory / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    return directory


def test_a_tokenizer_in_parts_cuts_text_as_transformers_does(in_parts):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Qwen2Tokenizer(
        vocab=json.loads((in_parts / "vocab.json").read_text()),
        merges=[tuple(line.split()) for line in (in_parts / "merges.txt").read_text().splitlines() if line[0] != "#"],
    )
    ours = TextTokens(in_parts)
    for text in (CORPUS, "\n\nHi", " 3 foxes", "it's\r\n\r\n e\u0301"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids
    assert max(Counter(map(len, map(ours.bytes_of, ours.encode(CORPUS))))) > 1  # something was merged


def test_added_tokens_of_a_tokenizer_in_parts_are_shown_unless_special(in_parts):
    tokens = TextTokens(in_parts)
    assert [tokens.bytes_of(400), tokens.bytes_of(401)] == [b"", b"<think>"]
    assert 401 not in tokens.encode("<think>")
