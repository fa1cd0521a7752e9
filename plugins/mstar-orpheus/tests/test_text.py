import pytest
from hypothesis import given
from hypothesis import strategies as st
from mstar_orpheus.text import SEGMENT_BYTES, segments, speakable

ANYTHING = st.text(st.one_of(st.sampled_from(" .!?\n<>aé。🎉\u200d\u0301"), st.characters(exclude_categories=["Cs"])))


@given(ANYTHING, st.integers(4, 60))
def test_segments_join_to_the_text_and_keep_the_limit(text, limit):
    pieces = segments(text, limit)
    assert "".join(pieces) == text
    assert all(0 < len(piece.encode()) <= limit for piece in pieces)


def test_a_short_text_is_one_segment():
    assert segments("Hello there. How are you?") == ["Hello there. How are you?"]


def test_long_text_is_cut_between_sentences():
    sentence = "This one is said in full. "
    pieces = segments(sentence * 100)
    assert all(piece.endswith("full. ") for piece in pieces)
    assert len(pieces) == -(-100 // (SEGMENT_BYTES // len(sentence)))


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("It cost Mr. ", "Smith 3.50 today"),
        ("See J. ", "Doe here"),
        ("Fruit, e.g. ", "Apples"),
        ("Well... ", "maybe so"),
        ("“Really?” ", "she said"),
    ],
)
def test_a_sentence_that_goes_on_behind_a_mark_is_not_cut_there(before, behind):
    first = "A first sentence. "
    assert segments(first + before + behind, len((first + before).encode()))[0] == first


@pytest.mark.parametrize("end", [". ", "! ", "?” ", "。", "؟ ", "\n"])
def test_sentences_of_many_scripts_are_seen(end):
    first, second = f"aaaa{end}", "Bb bb"
    assert segments(first + second, len((first + second).encode()) - 1) == [first, second]


def test_a_long_sentence_is_cut_at_a_space():
    assert segments("aaaa bbbb cccc", 10) == ["aaaa bbbb ", "cccc"]


def test_a_tag_is_never_torn_apart():
    assert segments("aaaaaa<laugh>bb", 10) == ["aaaaaa", "<laugh>bb"]


def test_a_character_keeps_its_marks_and_a_family_stays_together():
    assert segments("aaae\u0301", 4) == ["aaa", "e\u0301"]
    assert segments("a👨\u200d👩", 12) == ["a👨\u200d👩"]
    assert segments("aa👨\u200d👩", 12) == ["aa", "👨\u200d👩"]


def test_fifty_thousand_characters_are_split():
    assert max(len(piece) for piece in segments("x" * 50_000)) == SEGMENT_BYTES


@pytest.mark.parametrize("text", ["", " \n\t", "\x00\x07", "\u200b\u200e", "\u3000"])
def test_spaces_and_control_characters_are_not_speakable(text):
    assert not speakable(text)


@pytest.mark.parametrize("text", ["a", "?!", "🎉", "שלום", "<sigh>"])
def test_everything_else_is_speakable(text):
    assert speakable(text)
