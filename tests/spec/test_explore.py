import math
from dataclasses import dataclass, replace

import pytest

from mstar_core.spec.explore import MOST_REQUESTS, explore, requests
from mstar_core.spec.graph import RequestInput, Run, Walk
from mstar_core.spec.machine import AT_MOST, Start, Transition
from mstar_core.spec.params import Parameter
from mstar_core.testing import counting, scripted


class Machine:
    """Reads, writes unless there is nothing to write, and ends with the speaker. Variants override a step."""

    def start(self, request):
        return Transition(state="reading", start=(Start("read"), Start("speak")))

    def advance(self, state, event):
        match event.walk:
            case "read":
                return self.after_read(event)
            case "write":
                return self.after_write(event)
        return Transition(state=None, end=state)

    def after_read(self, event):
        return self.finish("stop") if event.flags["stop"] else Transition(state="writing", start=(Start("write"),))

    def after_write(self, event):
        return self.finish("length" if event.how == AT_MOST else "stop")

    def finish(self, reason):
        return Transition(state=reason, finish=("writing",))


def variant(**steps):
    """A machine with some steps replaced."""
    return type("Variant", (Machine,), steps)()


def only(problems):
    """The one problem there should be."""
    assert len(problems) == 1, problems
    return problems[0]


def test_a_sound_machine_has_no_problems(toy):
    assert explore(toy.model(machine=Machine())) == []


@pytest.mark.parametrize("plugin", [scripted, counting], ids=["scripted", "counting"])
def test_the_machines_of_the_test_kit_are_sound(toy, plugin):
    config = plugin.mstar_config(None, None)
    walks = plugin.mstar_walks(None, config)
    spec = replace(
        toy.model(),
        card=plugin.mstar_models()[0],
        config=config,
        nodes=plugin.mstar_nodes(None, config),
        walks=walks.walks,
        edges=walks.edges,
        inputs=walks.inputs,
        machine=plugin.mstar_state_machine(None, config),
    )
    assert explore(spec) == []


def test_a_walk_that_no_request_starts_is_reported_with_its_place(toy):
    spare = Walk(name="spare", partition="writing", body=Run("writer"))
    problem = only(explore(toy.model(walks=(toy.read, toy.write, toy.speak, spare), machine=Machine())))
    assert problem.startswith(f"{__file__}:")
    assert "walk 'spare' can never run" in problem


def test_a_stream_that_is_never_finished_leaves_the_request_stuck(toy):
    problem = only(explore(toy.model(machine=variant(finish=lambda self, reason: Transition(state=reason)))))
    assert "a request is stuck: 'speak' waits for the end of partition writing, which the machine never f" in problem
    assert "(a request with 1 prompt for audio; after " in problem


def test_a_machine_that_goes_round_without_an_end_never_ends(toy):
    machine = variant(after_write=lambda self, event: Transition(state="writing", start=(Start("write"),)))
    problem = only(explore(toy.model(machine=machine)))
    assert "a request never ends once it runs 'speak', 'write'" in problem
    assert problem.endswith("after read done)")


def test_a_machine_that_may_go_round_but_can_also_end_is_sound(toy):
    def after_write(self, event):
        return self.finish("stop") if event.how == AT_MOST else Transition(state="writing", start=(Start("write"),))

    assert explore(toy.model(machine=variant(after_write=after_write))) == []


def test_a_machine_that_counts_for_ever_never_ends(toy):
    @dataclass(frozen=True)
    class Count:
        number: int

    class Counting(Machine):
        def start(self, request):
            return Transition(state=Count(0), start=(Start("read"),))

        def advance(self, state, event):
            return Transition(state=Count(state.number + 1), start=(Start("read"),))

    spec = toy.model(nodes=(toy.reader,), walks=(toy.read,), edges=(), machine=Counting())
    assert "its requests never end" in only(explore(spec))


def test_a_walk_whose_input_this_request_does_not_bring_is_reported_with_the_request(toy):
    spec = toy.model(inputs=(replace(toy.prompt, optional=True),), machine=Machine())
    problem = only(explore(spec))
    assert (
        "it started walk 'read', which consumes 'prompt': the request does not bring that and no walk that ran"
        in problem
    )
    assert "a request with nothing for audio; at its start" in problem


def test_a_walk_before_the_one_that_makes_its_signal_is_reported(toy):
    machine = variant(start=lambda self, request: Transition(state="", start=(Start("write"), Start("speak"))))
    problems = explore(toy.model(machine=machine))
    assert any("it started walk 'write', which consumes 'item'" in problem for problem in problems)


FAULTS = {
    "unknown walk": (
        Transition(state="", start=(Start("wriet"),)),
        "it started walk 'wriet', which the model does not have (did you mean 'write'?)",
    ),
    "unknown partition": (
        Transition(state="", finish=("writng",)),
        "it finished partition 'writng', which the model does not have (did you mean 'writing'?)",
    ),
    "busy partition": (
        Transition(state="", start=(Start("speak"),)),
        "it started walk 'speak' while 'speak' is running in the same partition 'speaking'",
    ),
    "early end": (Transition(state="", end="stop"), "it ended the request with 'stop' while walk 'speak' is running"),
    "bad take": (
        Transition(state="", start=(Start("write", {"prompt": 1}),)),
        "it started walk 'write' with input 'prompt' number 1; the request brought 1",
    ),
    "unknown take": (
        Transition(state="", start=(Start("write", {"promt": 0}),)),
        "with input 'promt' number 0; the request brought 0 (did you mean 'prompt'?)",
    ),
    "mutable state": (Transition(state=[], start=(Start("write"),)), "its state is a list, which cannot be hashed"),
    "no transition": ("stop", "it returned a 'str' object; a Transition was expected"),
}


@pytest.mark.parametrize(("transition", "expected"), FAULTS.values(), ids=FAULTS)
def test_a_transition_that_cannot_be_is_reported_with_the_path_to_it(toy, transition, expected):
    problems = explore(toy.model(machine=variant(after_read=lambda self, event: transition)))
    found = [problem for problem in problems if expected in problem]
    assert len(found) == 1, problems
    assert "after read done" in found[0]


def test_a_walk_in_a_finished_partition_is_reported(toy):
    def after_read(self, event):
        return Transition(state="", start=(Start("write"),), finish=())

    def after_write(self, event):
        return Transition(state="again", start=(Start("write"),), finish=("writing",))

    problems = explore(toy.model(machine=variant(after_read=after_read, after_write=after_write)))
    assert any("in partition 'writing', which it has finished" in problem for problem in problems)


def test_nothing_started_and_no_end_is_reported(toy):
    machine = variant(start=lambda self, request: Transition(state=""))
    assert any("neither started a walk nor ended the request" in each for each in explore(toy.model(machine=machine)))


def test_a_machine_that_raises_is_reported_with_the_error(toy):
    def after_read(self, event):
        raise KeyError("item")

    assert any(
        "advance() raised KeyError: 'item'" in problem
        for problem in explore(toy.model(machine=variant(after_read=after_read)))
    )


def test_parameters_that_the_machine_reads_are_varied_and_others_are_not(toy):
    think = Parameter(name="think", kind="bool", default=False)
    voices = Parameter(name="voice", kind="str", default="a", choices=("a", "b", "c"))

    class Reading(Machine):
        def start(self, request):
            return Transition(state="", start=(Start("read"), Start("speak")) if request.params["think"] else ())

    spec = toy.model(parameters=(toy.most, think, voices), machine=Reading())
    seen = list(requests(spec))
    assert {request.params["think"] for request in seen} == {True, False}
    assert {request.params["most"] for request in seen} == {10, 1, 100}
    assert {request.params["voice"] for request in seen} == {"a"}


def test_every_combination_of_inputs_and_outputs_is_a_request(toy):
    inputs = (toy.prompt, RequestInput(name="picture", many=True, optional=True))
    spec = toy.model(inputs=inputs, card=toy.card(outputs=("audio", "text")), machine=Machine())
    seen = {(len(request.inputs["picture"]), request.outputs) for request in requests(spec)}
    outputs = [frozenset({"audio"}), frozenset({"text"}), frozenset({"audio", "text"})]
    assert seen == {(count, wanted) for count in (0, 1, 2) for wanted in outputs}


def test_an_input_of_several_shapes_comes_in_every_order_of_them(toy):
    content = RequestInput(name="content", shape=("ids",), alternatives=(("height", "width", 3),), many=True)
    spec = toy.model(inputs=(toy.prompt, content), machine=Machine())
    ranks = [tuple(len(each.shape) for each in request.inputs["content"]) for request in requests(spec)]
    assert set(ranks) == {(1,), (3,), (1, 1), (1, 3), (3, 1), (3, 3)}


def test_many_parameters_are_varied_one_at_a_time(toy):
    names = [f"p{number}" for number in range(12)]

    class Greedy(Machine):
        def start(self, request):
            return Transition(state="", start=(Start("read"),), end=str(sum(request.params[name] for name in names)))

    switches = tuple(Parameter(name=name, kind="bool", default=False) for name in names)
    seen = list(requests(toy.model(parameters=(toy.most, *switches), machine=Greedy())))
    assert math.prod([2] * len(names)) > MOST_REQUESTS >= len(seen)
    assert all(any(request.params[name] for request in seen) for name in names)
