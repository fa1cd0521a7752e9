import pytest
from mstar_orpheus.machine import OrpheusMachine

from mstar_core.spec.machine import AT_MOST, UNTIL, InputShape, RequestView, Start, WalkEnded


def request(*lengths, max_tokens=100):
    shapes = tuple(InputShape("int64", (length,)) for length in lengths)
    return RequestView(params={"max_tokens": max_tokens}, inputs={"prompt": shapes})


def prefilled(stop=False):
    return WalkEnded(walk="prefill", flags={"stop": stop})


def decoded(how=UNTIL):
    return WalkEnded(walk="decode", how=how)


VOCODED = WalkEnded(walk="vocode", how=UNTIL)


def run(view, *events):
    """What a machine says to each event in turn."""
    machine = OrpheusMachine()
    said = [machine.start(view)]
    for event in events:
        said.append(machine.advance(said[-1].state, event))
    return said


def test_a_request_begins_with_its_first_prompt_and_the_codec():
    assert run(request(20))[0].start == (Start("prefill", {"prompt": 0}), Start("vocode"))


def test_one_segment_is_prefilled_decoded_and_sounded():
    _, decode, finish, end = run(request(20), prefilled(), decoded(), VOCODED)
    assert decode.start == (Start("decode"),)
    assert (finish.start, finish.finish, finish.end) == ((), ("speech",), None)
    assert end.end == "stop"


def test_the_next_segment_follows_the_one_before():
    *_, following = run(request(20, 30), prefilled(), decoded())
    assert following.start == (Start("prefill", {"prompt": 1}),)
    assert following.finish == ()


def test_a_first_id_that_is_the_end_skips_decoding():
    _, following, finish = run(request(20, 30), prefilled(stop=True), prefilled(stop=True))
    assert following.start == (Start("prefill", {"prompt": 1}),)
    assert finish.finish == ("speech",)


@pytest.mark.parametrize("how", [(AT_MOST, UNTIL), (UNTIL, AT_MOST), (AT_MOST, AT_MOST)])
def test_one_segment_cut_short_makes_the_whole_end_as_length(how):
    first, second = how
    *_, end = run(request(20, 30), prefilled(), decoded(first), prefilled(), decoded(second), VOCODED)
    assert end.end == "length"


def test_demand_is_the_longest_prompt_and_what_may_follow_it():
    assert OrpheusMachine().demand(request(20, 50, 30, max_tokens=100)) == {"lm": 150}
