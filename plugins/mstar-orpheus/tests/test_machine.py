from mstar_orpheus.machine import OrpheusMachine

from mstar_core.spec.machine import AT_MOST, UNTIL, InputShape, RequestView, Start, WalkEnded


def request(*lengths, max_tokens=100):
    shapes = tuple(InputShape("int64", (length,)) for length in lengths)
    return RequestView(params={"max_tokens": max_tokens}, inputs={"prompt": shapes})


def prefilled(stop=False):
    return WalkEnded(walk="prefill", flags={"stop": stop})


def test_one_segment_is_read_spoken_and_ends_with_the_codec():
    machine = OrpheusMachine()
    first = machine.start(request(20))
    assert first.start == (Start("prefill", {"prompt": 0}), Start("vocode"))
    decoding = machine.advance(first.state, prefilled())
    assert decoding.start == (Start("decode"),)
    spoken = machine.advance(decoding.state, WalkEnded(walk="decode", how=UNTIL))
    assert (spoken.start, spoken.finish, spoken.end) == ((), ("speech",), None)
    assert machine.advance(spoken.state, WalkEnded(walk="vocode", how=UNTIL)).end == "stop"


def test_a_first_id_that_is_the_end_skips_decode():
    machine = OrpheusMachine()
    ended = machine.advance(machine.start(request(20)).state, prefilled(stop=True))
    assert (ended.start, ended.finish) == ((), ("speech",))


def test_segments_follow_each_other_and_one_that_was_cut_is_remembered():
    machine = OrpheusMachine()
    state = machine.advance(machine.start(request(20, 30)).state, prefilled()).state
    second = machine.advance(state, WalkEnded(walk="decode", how=AT_MOST))
    assert second.start == (Start("prefill", {"prompt": 1}),)
    state = machine.advance(second.state, prefilled()).state
    last = machine.advance(state, WalkEnded(walk="decode", how=UNTIL))
    assert last.finish == ("speech",)
    assert machine.advance(last.state, WalkEnded(walk="vocode", how=UNTIL)).end == "length"


def test_demand_is_the_longest_prompt_with_its_reply():
    assert OrpheusMachine().demand(request(20, 50, 30)) == {"lm": 150}
