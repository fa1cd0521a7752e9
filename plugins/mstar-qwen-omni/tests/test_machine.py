import pytest
from mstar_qwen_omni.machine import QwenOmniMachine

from mstar_core.spec.machine import AT_MOST, UNTIL, InputShape, RequestView, WalkEnded

PARAMS = {"max_tokens": 20, "max_audio_frames": 50}


def request(*outputs, clips=0, pictures=0):
    inputs = {
        "ids": (InputShape("int64", (30,)),),
        "clips": (InputShape("float32", (128, 90)),) * clips,
        "widths": (InputShape("int64", ()),) * clips,
        "pictures": (InputShape("uint8", (16, 1536)),) * pictures,
        "grids": (InputShape("int64", (3,)),) * pictures,
    }
    return RequestView(params=PARAMS, inputs=inputs, outputs=frozenset(outputs))


def names(transition):
    return [start.walk for start in transition.start]


def follow(transition, *events):
    """The last transition of a course."""
    machine = QwenOmniMachine()
    for event in events:
        transition = machine.advance(transition.state, event)
    return transition


READ = WalkEnded(walk="read", flags={"stop": False})
READ_ALOUD = WalkEnded(walk="read_aloud", flags={"stop": False})
WRITTEN = WalkEnded(walk="write", how=UNTIL)
SPEECH = (WalkEnded(walk="listen"), WalkEnded(walk="talk", how=UNTIL), WalkEnded(walk="sound", how=UNTIL))


def test_media_are_encoded_in_the_order_of_the_prompt_before_it_is_read():
    machine = QwenOmniMachine()
    transition, walked = machine.start(request("text", clips=2, pictures=1)), []
    while names(transition) != ["read"]:
        (start,) = transition.start
        walked.append((start.walk, dict(start.take)))
        transition = machine.advance(transition.state, WalkEnded(walk=start.walk))
    assert walked == [
        ("hear", {"clips": 0, "widths": 0}),
        ("hear", {"clips": 1, "widths": 1}),
        ("see", {"pictures": 0, "grids": 0}),
    ]


def test_text_alone_touches_neither_talker_nor_vocoder():
    first = QwenOmniMachine().start(request("text"))
    assert names(first) == ["read"]
    last = follow(first, READ, WRITTEN)
    assert (last.end, last.start, last.finish) == ("stop", (), ())


def test_speech_starts_at_once_and_the_text_closes_its_stream():
    first = QwenOmniMachine().start(request("text", "audio"))
    assert names(first) == ["read_aloud", "listen", "sound"]
    written = follow(first, READ_ALOUD, WRITTEN)
    assert (written.finish, written.end) == (("thinker",), None)


@pytest.mark.parametrize("speech_first", [True, False])
def test_a_spoken_reply_ends_when_it_is_both_written_and_sounded(speech_first):
    first = QwenOmniMachine().start(request("text", "audio"))
    text = (READ_ALOUD, WRITTEN)
    events = (*SPEECH, *text) if speech_first else (*text, *SPEECH)
    assert follow(first, *events[:-1]).end is None
    assert follow(first, *events).end == "stop"


def test_an_empty_reply_ends_at_once_or_with_its_speech():
    empty = {"stop": True}
    assert follow(QwenOmniMachine().start(request("text")), WalkEnded(walk="read", flags=empty)).end == "stop"
    first = QwenOmniMachine().start(request("text", "audio"))
    read = follow(first, WalkEnded(walk="read_aloud", flags=empty))
    assert read.finish == ("thinker",)
    assert follow(read, *SPEECH).end == "stop"


def test_a_reply_cut_short_in_text_or_speech_ends_as_length():
    machine = QwenOmniMachine()
    cut_text = WalkEnded(walk="write", how=AT_MOST)
    assert follow(machine.start(request("text")), READ, cut_text).end == "length"
    cut_speech = (SPEECH[0], WalkEnded(walk="talk", how=AT_MOST), SPEECH[2])
    assert follow(machine.start(request("text", "audio")), READ_ALOUD, WRITTEN, *cut_speech).end == "length"


def test_demand_counts_the_talker_only_where_it_speaks():
    machine = QwenOmniMachine()
    assert machine.demand(request("text")) == {"thinker": 50}
    assert machine.demand(request("text", "audio")) == {"thinker": 50, "talker": 89}
