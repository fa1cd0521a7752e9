import pytest
from hypothesis import given
from hypothesis import strategies as st

from mstar_core.server.stop_strings import StopStrings


def passed(pieces, strings):
    """The text that comes through, and whether a stop string did."""
    stops = StopStrings(strings)
    text = ""
    for piece in pieces:
        text += stops.push(piece)
        if stops.found:
            return text, True
    return text + stops.rest(), False


@pytest.mark.parametrize(
    ("pieces", "strings", "text"),
    [
        (["one END two"], ["END"], "one "),
        (["one E", "N", "D two"], ["END"], "one "),
        (["EEN", "END"], ["END"], "EEN"),
        (["ababac"], ["abac"], "ab"),
        (["a", "b", "a", "b", "a", "c"], ["abac"], "ab"),
        (["one two"], ["two", "one"], ""),
        (["bab"], ["bab", "a"], "b"),
        (["b", "a", "b"], ["bab", "a"], "b"),
        (["END"], ["END"], ""),
    ],
)
def test_text_ends_before_the_stop_string_that_is_complete_first_in_whatever_pieces_it_comes(pieces, strings, text):
    assert passed(pieces, strings) == (text, True)


@pytest.mark.parametrize("pieces", [["one EN"], ["one E", "N"], ["E", "N", "E"], []])
def test_what_only_began_like_a_stop_string_is_passed_on(pieces):
    assert passed(pieces, ["END"]) == ("".join(pieces), False)


def test_without_stop_strings_nothing_is_held_back():
    stops = StopStrings([])
    assert (stops.push("END"), stops.rest()) == ("END", "")


@given(st.lists(st.text("ab", max_size=4), max_size=8), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3))
def test_pieces_make_no_difference(pieces, strings):
    whole = "".join(pieces)
    ends = [(whole.find(string) + len(string), whole.find(string)) for string in strings if string in whole]
    assert passed(pieces, strings) == ((whole[: min(ends)[1]], True) if ends else (whole, False))
