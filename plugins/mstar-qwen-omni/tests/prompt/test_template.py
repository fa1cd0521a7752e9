import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mstar_qwen_omni.prompt import Film, Sound, Still, TextTokens, Turn, Words, lay_out

transformers = pytest.importorskip("transformers")

TYPES = {Sound: "audio", Still: "image", Film: "video", Words: "text"}

words = st.text(st.characters(codec="utf-8", exclude_characters="<"), min_size=1).filter(
    lambda text: not any(role in text for role in ("system", "user", "assistant"))
)  # the toy tokenizer takes its role words for added tokens
media = st.one_of(
    st.builds(Sound, st.integers(1, 20)),
    st.builds(Still, st.integers(1, 4), st.integers(1, 4)),
    st.builds(Film, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.just(2.0)),
)
contents = st.lists(st.one_of(words.map(Words), media), max_size=5).filter(
    lambda pieces: not any(isinstance(a, Words) and isinstance(b, Words) for a, b in itertools.pairwise(pieces))
)
conversations = st.lists(
    st.builds(Turn, st.sampled_from(["system", "user", "assistant"]), contents.map(tuple)), min_size=1, max_size=5
)


@pytest.fixture(scope="module")
def theirs(fixture_dir):
    return transformers.AutoTokenizer.from_pretrained(fixture_dir)


@pytest.fixture(scope="module")
def tokens(fixture_dir):
    return TextTokens(fixture_dir)


@settings(max_examples=150, deadline=None)
@given(conversation=conversations)
def test_ids_are_those_of_the_checkpoints_chat_template(conversation, theirs, tokens, config):
    messages = [
        {
            "role": turn.role,
            "content": [{"type": TYPES[type(piece)], "text": getattr(piece, "text", "")} for piece in turn.pieces],
        }
        for turn in conversation
    ]
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    wanted = theirs(rendered, add_special_tokens=False).input_ids
    made = lay_out(conversation, tokens, config.ids, 13).ids.tolist()
    assert _folded(made, config.ids) == wanted


def _folded(ids, special):
    """Runs of pads as the one that a template writes."""
    pads = (special.audio, special.image, special.video)
    return [id for place, id in enumerate(ids) if not place or id not in pads or ids[place - 1] != id]


def test_turns_span_what_the_user_said_with_its_marks(tokens, config):
    said = [
        Turn("system", (Words("Hm."),)),
        Turn("user", (Words("a"), Still(1, 2))),
        Turn("assistant", (Words("b"),)),
        Turn("user", (Words("c"),)),
    ]
    prompt = lay_out(said, tokens, config.ids, 13)
    special = config.ids
    assert prompt.turns.dtype == np.int64
    assert prompt.turns.shape == (2, 2)
    for start, stop in prompt.turns:
        turn = prompt.ids[start:stop].tolist()
        assert turn[:2] == [special.im_start, special.user]
        assert turn[-2:] == [special.im_end, special.newline]
        assert prompt.ids[stop] == special.im_start


def test_every_conversation_ends_with_the_three_ids_of_the_replys_beginning(tokens, config):
    prompt = lay_out([Turn("user", (Words("x"),))], tokens, config.ids, 13)
    assert prompt.ids[-3:].tolist() == [config.ids.im_start, config.ids.assistant, config.ids.newline]
