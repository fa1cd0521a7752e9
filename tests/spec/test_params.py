import pytest

from mstar_core.errors import InvalidRequest
from mstar_core.spec.params import SEED, SEED_LIMIT, Parameter, check_parameters

WARMTH = Parameter(name="warmth", kind="float", default=0.5, minimum=0, maximum=2)
SHARE = Parameter(name="share", kind="float", default=1.0, exclusive_minimum=0, maximum=1)
STEPS = Parameter(name="steps", kind="int", default=20, minimum=1)
VOICE = Parameter(name="voice", kind="str", default="low", choices=("low", "high"))
NOISE = Parameter(name="noise", kind="bool", default=True)
ALL = (WARMTH, SHARE, STEPS, VOICE, NOISE, SEED)


def test_defaults_stand_for_what_is_left_out_and_none_for_what_has_none():
    assert check_parameters(ALL, {"steps": 5}) == {
        "warmth": 0.5,
        "share": 1.0,
        "steps": 5,
        "voice": "low",
        "noise": True,
        "seed": None,
    }


def test_an_integer_for_a_number_becomes_a_float():
    value = check_parameters([WARMTH], {"warmth": 1})["warmth"]
    assert (value, type(value)) == (1.0, float)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"warmth": 2.5}, "'warmth' must be at most 2, got 2.5"),
        ({"warmth": -1}, "'warmth' must be at least 0, got -1"),
        ({"warmth": float("nan")}, "'warmth' must be a finite number, got nan"),
        ({"warmth": "1"}, "'warmth' must be a number, got '1'"),
        ({"share": 0}, "'share' must be greater than 0, got 0"),
        ({"steps": 1.0}, "'steps' must be an integer, got 1.0"),
        ({"steps": True}, "'steps' must be an integer, got True"),
        ({"steps": 0}, "'steps' must be at least 1, got 0"),
        ({"noise": 1}, "'noise' must be true or false, got 1"),
        ({"voice": "hihg"}, "'voice' must be one of low, high; got 'hihg' (did you mean 'high'?)"),
        ({"voice": None}, "'voice' must not be null; leave it out for the default"),
        ({"voise": "low"}, "unknown field 'voise' (did you mean 'voice'?)"),
        ({"seed": SEED_LIMIT}, f"'seed' must be at most {SEED_LIMIT - 1}, got {SEED_LIMIT}"),
        ({"seed": -1}, "'seed' must be at least 0, got -1"),
    ],
)
def test_a_value_that_cannot_be_is_refused_naming_the_field(given, message):
    with pytest.raises(InvalidRequest) as caught:
        check_parameters(ALL, given)
    assert str(caught.value) == message
    assert caught.value.param == next(iter(given))


def test_a_long_value_is_shown_in_part():
    with pytest.raises(InvalidRequest) as caught:
        STEPS.check("x" * 1000)
    assert len(str(caught.value)) < 120


def test_the_ends_of_a_range_are_valid():
    assert [WARMTH.check(value) for value in (0, 2)] == [0.0, 2.0]
    assert SEED.check(SEED_LIMIT - 1) == SEED_LIMIT - 1


def test_a_parameter_of_an_unknown_kind_is_refused_when_it_is_declared():
    with pytest.raises(ValueError, match="kind 'integer' is none of int, float, bool, str"):
        Parameter(name="x", kind="integer")
