import pytest

from mstar_core.errors import ConfigurationError, SpecError
from mstar_core.spec.endings import endings
from mstar_core.spec.graph import DynamicLoop, Emit, Loop, Parallel, Param, Run, Sequential, StreamEnd, Walk
from mstar_core.spec.machine import AT_MOST, InputShape, RequestView, Start, Transition
from mstar_core.spec.trace import Assumptions, TracedLoop, assumptions, trace


class Machine:
    def start(self, request):
        return Transition(state="", start=(Start("speak"), Start("read", {"prompt": 1})))

    def advance(self, state, event):
        match event.walk:
            case "read" if not event.flags["stop"]:
                return Transition(state="", start=(Start("write"),))
            case "speak":
                return Transition(state="", end=state)
        return Transition(state="length" if event.how == AT_MOST else "stop", finish=("writing",))


def request(**params):
    prompt = InputShape("int64", (3,))
    return RequestView(params={"most": 10} | params, inputs={"prompt": (prompt, prompt)}, outputs=frozenset({"audio"}))


def test_a_trace_follows_producers_before_the_consumers_that_wait_for_them(toy):
    traced = trace(toy.model(machine=Machine()), request())
    assert [(walk.walk, walk.ends) for walk in traced.walks] == [
        ("speak", "until"),
        ("read", "done"),
        ("write", "until"),
    ]
    assert traced.end == "stop"


def test_a_traced_walk_tells_nodes_engines_inputs_and_loop_bounds(toy):
    speak, read, write = trace(toy.model(machine=Machine()), request(most=7)).walks
    assert read.nodes == {"reader": "stateless"}
    assert read.take == {"prompt": 1}
    assert write.loops == (TracedLoop(("writer",), 7, "stop"),)
    assert speak.loops == (TracedLoop(("speaker",), None, "end of speaker.sound"),)


def test_assumptions_change_how_walks_end(toy):
    spec = toy.model(machine=Machine())
    assert trace(spec, request(), assumptions(spec, ("write=at_most",))).end == "length"
    stopped = trace(spec, request(), assumptions(spec, ("read.stop",)))
    assert [walk.walk for walk in stopped.walks] == ["speak", "read"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("wriet=until", "--assume wriet=until: no walk 'wriet' (did you mean 'write'?); there are read, write, speak"),
        ("write=soon", "--assume write=soon: use write=done, write=until, write=at_most"),
        ("read.stpo", "--assume read.stpo: use read.stop, read=done, read=until, read=at_most"),
    ],
)
def test_an_assumption_about_what_the_model_has_not_is_refused(toy, given, message):
    with pytest.raises(ConfigurationError) as caught:
        assumptions(toy.model(), (given,))
    assert str(caught.value) == message


def test_an_assumption_that_cannot_come_true_is_refused(toy):
    with pytest.raises(ConfigurationError, match="'read' cannot end by 'until' in this request; it can by done"):
        trace(toy.model(machine=Machine()), request(), Assumptions({"read": "until"}))


def test_a_request_that_gets_stuck_or_goes_on_for_ever_is_reported(toy):
    class Stuck(Machine):
        def advance(self, state, event):
            return Transition(state="")

    class Endless(Machine):
        def advance(self, state, event):
            return Transition(state="", start=(Start("read"),))

    with pytest.raises(SpecError, match="the request is stuck: 'speak' cannot end"):
        trace(toy.model(machine=Stuck()), request())
    with pytest.raises(SpecError, match="it has started 10000 walks"):
        trace(toy.model(machine=Endless()), request())


UNTIL_STOP = DynamicLoop(Run("writer"), Param("most", -1), "stop")
TO_THE_END = DynamicLoop(Run("speaker"), None, StreamEnd("speaker", "sound"))


@pytest.mark.parametrize(
    ("body", "most", "expected"),
    [
        (Run("writer"), 5, {"done"}),
        (Loop(Run("writer"), 3), 5, {"done"}),
        (Loop(Run("writer"), Param("most")), 0, {"at_most"}),
        (UNTIL_STOP, 5, {"until", "at_most"}),
        (UNTIL_STOP, 1, {"at_most"}),
        (TO_THE_END, 5, {"until"}),
        (Sequential(UNTIL_STOP, Emit("sound", "audio")), 5, {"until", "at_most"}),
        (Sequential(UNTIL_STOP, TO_THE_END), 5, {"until"}),
        (Parallel(UNTIL_STOP, TO_THE_END), 1, {"until", "at_most"}),
        (Loop(UNTIL_STOP, 2), 5, {"until", "at_most"}),
    ],
)
def test_a_walk_ends_as_its_last_loop_does(body, most, expected):
    walk = Walk(name="write", partition="writing", body=body)
    assert {event.how for event in endings(walk, {"most": most})} == expected


def test_a_reported_stop_signal_agrees_with_the_end_and_other_flags_are_free():
    walk = Walk(name="write", partition="writing", body=UNTIL_STOP, reports=("stop", "loud"))
    told = {(event.how, event.flags["stop"], event.flags["loud"]) for event in endings(walk, {"most": 5})}
    assert told == {(how, how == "until", loud) for how in ("until", "at_most") for loud in (False, True)}
