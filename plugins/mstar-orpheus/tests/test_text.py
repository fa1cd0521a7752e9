import pytest
from hypothesis import given
from hypothesis import strategies as st
from mstar_orpheus.text import segments, speakable


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=400), st.integers(30, 120))
def test_no_character_is_lost_and_no_segment_too_long(text, limit):
    pieces = segments(text, limit)
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= limit for piece in pieces)


def test_short_text_is_one_segment():
    assert segments("Hello. How are you?") == ["Hello. How are you?"]


def test_long_text_is_cut_behind_sentences():
    text = "This is the first sentence. This is the second one! And a third?"
    assert segments(text, 30) == ["This is the first sentence. ", "This is the second one! ", "And a third?"]


def test_abbreviations_and_decimals_do_not_end_a_sentence():
    assert segments("Dr. Who paid 3.50 pounds. Then he left.", 30) == ["Dr. Who paid 3.50 pounds. ", "Then he left."]


def test_a_long_sentence_is_cut_at_a_space_and_never_inside_a_tag():
    pieces = segments("word " * 5 + "<chuckle> more words follow", 30)
    assert "".join(pieces).count("<chuckle>") == 1
    assert any("<chuckle>" in piece for piece in pieces)


def test_fifty_thousand_characters_are_split():
    assert max(map(len, segments("x" * 50_000))) == 300


@pytest.mark.parametrize(("text", "said"), [("a", True), ("!", True), ("🙂", True), (" \n\x00", False), ("", False)])
def test_only_text_with_something_in_it_can_be_spoken(text, said):
    assert speakable(text) is said
