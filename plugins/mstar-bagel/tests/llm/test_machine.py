import pytest
from mstar_bagel.config import BagelConfig
from mstar_bagel.machine import BagelMachine

from mstar_core.plugins.assemble import assemble
from mstar_core.spec.explore import explore
from mstar_core.spec.machine import AT_MOST, UNTIL, InputShape, RequestView, WalkEnded

TEXT, PICTURE = InputShape("int64", (5,)), InputShape("uint8", (28, 42, 3))
VIEW = InputShape("uint8", (32, 48, 3))
PARAMS = {"think": False, "max_tokens": 10, "max_think_tokens": 4, "height": 32, "width": 48}


@pytest.fixture
def machine(tiny):
    return BagelMachine(BagelConfig.read(tiny))


def request(content, made, params=None, **inputs):
    views = (VIEW,) * content.count(PICTURE)
    brought = {"content": tuple(content), "pictures": views, **inputs}
    return RequestView(params=PARAMS | (params or {}), inputs=brought, outputs=frozenset({made}))


@pytest.fixture
def course(machine):
    """The walks that a request takes, each with the content or picture that it takes, and how the request ends."""

    def following(view, last=UNTIL):
        said, walks = machine.start(view), []
        while said.end is None:
            (start,) = said.start
            walks.append((start.walk, *start.take.values()))
            said = machine.advance(said.state, WalkEnded(walk=start.walk, how=last))
        return walks, said.end

    return following


def test_an_answer_reads_everything_in_order_and_then_speaks(course):
    walks, end = course(request([TEXT, PICTURE, TEXT], "text"))
    assert walks == [("read_text", 0), ("read_picture", 1), ("read_text", 2), ("decode",)]
    assert end == "stop"


def test_a_text_alone_is_the_prompt_of_its_picture(course):
    walks, end = course(request([TEXT], "image"))
    assert walks == [("prefill_prompt", 0), ("image_gen",)]
    assert end == "stop"


def test_a_picture_is_encoded_before_it_is_looked_at_and_only_the_last_text_is_the_prompt(course):
    walks, _ = course(request([PICTURE, TEXT, PICTURE, TEXT], "image"))
    assert walks == [
        ("prefill_vae", 0),
        ("prefill_vit", 0),
        ("prefill_text", 1),
        ("prefill_vae", 1),
        ("prefill_vit", 2),
        ("prefill_prompt", 3),
        ("image_gen",),
    ]


def test_each_way_of_thinking_has_its_prompt_and_only_pictures_are_thought_about_first(course):
    prompts = {"think_to_answer": (TEXT,), "think_to_paint": (TEXT,)}
    painted, _ = course(request([TEXT], "image", {"think": True}, **prompts))
    assert [walk for walk, *_ in painted] == [
        "prefill_system",
        "prefill_prompt",
        "think",
        "prefill_thought",
        "image_gen",
    ]
    answered, _ = course(request([TEXT], "text", {"think": True}, **prompts))
    assert [walk for walk, *_ in answered] == ["read_system", "read_text", "decode"]


@pytest.mark.parametrize(("made", "end"), [("text", "length"), ("image", "stop")])
def test_only_an_answer_that_is_cut_ends_as_length(course, made, end):
    assert course(request([TEXT], made, {"think": made == "image"}), last=AT_MOST)[1] == end


def test_each_picture_gets_the_noise_of_its_number(machine):
    noise = InputShape("float32", (16, 4, 6))
    view = request([PICTURE], "image", posterior_noise=(noise,))
    assert machine.start(view).start[0].take == {"pictures": 0, "posterior_noise": 0}


def test_a_request_needs_room_for_all_contexts_at_once(machine):
    view = request([PICTURE, TEXT], "image")
    encoded, seen, painted = 2 * 3 + 2, 2 * 3 + 2, 2 * 3 + 2
    assert machine.demand(view) == {
        "llm": 2 * 5 + encoded + seen + 3 * painted,
        "llm_text": 5 + encoded + seen + painted,
        "llm_image": 5 + painted,
    }
    assert machine.demand(request([PICTURE, TEXT], "text")) == {"llm": seen + 5 + PARAMS["max_tokens"]}


def test_every_course_of_every_request_ends(registry, tiny):
    assert explore(assemble(registry, "bagel", tiny)) == []
