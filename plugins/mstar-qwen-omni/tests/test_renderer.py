import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mstar_qwen_omni.prompt import TextTokens
from mstar_qwen_omni.renderer import QwenOmniRenderer
from tokenizers import Tokenizer

from mstar_core.spec.content import Audio, Text


@pytest.fixture(scope="module")
def tokens(fixture_dir):
    return TextTokens(fixture_dir)


@pytest.fixture(scope="module")
def theirs(fixture_dir):
    return Tokenizer.from_file(str(fixture_dir / "tokenizer.json"))


def shown(tokens, ids):
    """The pieces that ids emitted one by one come to."""
    renderer = QwenOmniRenderer(tokens)
    pieces = [renderer.output("text", np.array([id])) for id in ids]
    return [piece.text for piece in [*pieces, *renderer.finish()] if piece is not None]


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.one_of(st.integers(0, 351), st.sampled_from(list("ä你😀".encode())))))
def test_pieces_of_any_ids_join_to_what_the_tokenizer_decodes(ids, tokens, theirs):
    assert "".join(shown(tokens, ids)) == theirs.decode(ids, skip_special_tokens=True)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(codec="utf-8")))
def test_a_character_is_shown_at_once_and_whole(text, tokens):
    assert shown(tokens, tokens.encode(text)) == list(text)


def test_special_ids_show_nothing(tokens, config):
    assert shown(tokens, [config.ids.im_end, config.ids.audio_start]) == []


def test_samples_become_sound_at_24_kilohertz(tokens):
    samples = np.linspace(-1, 1, 480, dtype=np.float32)
    sound = QwenOmniRenderer(tokens).output("audio", samples)
    assert isinstance(sound, Audio)
    assert sound.rate == 24000
    np.testing.assert_array_equal(sound.samples, samples)


@pytest.mark.parametrize(
    ("walks", "output"),
    [({"read": 30, "write": 9}, 10), ({"read": 30}, 1), ({}, 0), ({"read_aloud": 5, "talk": 70}, 1)],
)
def test_usage_counts_the_prompt_and_what_the_thinker_wrote(tokens, walks, output):
    usage = QwenOmniRenderer(tokens).usage(walks)
    assert usage == {"input_tokens": walks.get("read", 0) + walks.get("read_aloud", 0), "output_tokens": output}


def test_text_in_one_value_is_shown_together(tokens):
    piece = QwenOmniRenderer(tokens).output("text", np.array(tokens.encode("two words")))
    assert piece == Text("two words")
