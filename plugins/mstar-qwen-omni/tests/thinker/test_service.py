"""Text through `mstar_core.Engine`, from contents to text, with the recorded checkpoint."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mstar_qwen_omni import plugin
from mstar_qwen_omni.prompt import TextTokens

from mstar_core import Engine
from mstar_core.engines.kernels import COMPILERS
from mstar_core.errors import InvalidRequest
from mstar_core.spec.content import Audio, Image, Text, Video
from mstar_core.spec.placement import Placement
from mstar_core.testing.plugins import registry_with

WRITER = {"models": {"qwen-omni": {"omit": ["talker", "code2wav"]}}}
"""A placement for text alone."""

APART = {
    **WRITER,
    "workers": {name: {"device": "cpu", "threads": 1} for name in ("eyes", "reader", "writer")},
    "groups": [
        {"nodes": ["audio_encoder", "vision_encoder"], "worker": "eyes"},
        {"nodes": ["thinker"], "walks": ["read", "read_aloud"], "worker": "reader"},
        {"nodes": ["thinker"], "walks": ["hear", "see", "write"], "worker": "writer"},
    ],
}
"""Encoders, reading and writing apart, so that rows of media and the cache travel."""

CHAT = (Text("Be brief.", role="system"), Text("Tell me about ship 0."))

HELD = ("mstar_requests_open", "mstar_worker_requests", "mstar_tensors_published", "mstar_kv_pages_used")
PATIENCE_S = 20.0


def media():
    """A sound, two pictures and a clip with its sound track."""
    random = np.random.default_rng(0)
    sounds = [random.normal(size=samples).astype(np.float32) / 9 for samples in (9000, 40000)]
    frames = random.integers(0, 255, (3, 64, 96, 3), np.uint8)
    return (
        Text("What is"),
        Audio(sounds[0], 16000),
        Image(frames[0]),
        Image(frames[1, :32]),
        Video(frames, 1.0, Audio(sounds[1], 16000)),
    )


@pytest.fixture(scope="module")
def engine(golden_dir):
    """All of the model."""
    with Engine("qwen-omni", checkpoint=golden_dir, registry=registry_with(plugin)) as engine:
        yield engine


@pytest.fixture(scope="module")
def writer(golden_dir):
    """The model without its speech."""
    placement = Placement.model_validate(WRITER)
    registry = registry_with(plugin)
    with Engine("qwen-omni", checkpoint=golden_dir, registry=registry, placement=placement) as engine:
        yield engine


@pytest.fixture(scope="module")
def text_of(golden_dir):
    """The text of ids."""
    tokens = TextTokens(golden_dir)
    return lambda ids: b"".join(tokens.bytes_of(id) for id in ids).decode("utf-8", "replace")


def held(engine):
    return sum(sample.value for sample in engine.service.metrics() if sample.name in HELD)


def test_a_recorded_conversation_is_answered_as_recorded(writer, conversations, text_of):
    facts = conversations["text"].facts
    result = writer.generate(CHAT, max_tokens=10)
    assert result.text == text_of(facts["thinker_tokens"])
    assert result.finish_reason == "length"
    assert result.usage == {"input_tokens": facts["prompt_tokens"], "output_tokens": 10}


def test_a_conversation_of_several_turns_ends_where_the_model_ends_it(writer, conversations, text_of):
    facts = conversations["text_eos"].facts
    chat = [Text(text, role=role) for role, text in facts["chat"]]
    result = writer.generate(chat, max_tokens=50)
    assert result.text == text_of(facts["thinker_tokens"][:-1])
    assert result.finish_reason == "stop"
    assert result.usage["output_tokens"] == len(facts["thinker_tokens"])


def test_text_alone_of_the_whole_model_is_the_same_and_touches_no_speech(engine, conversations, text_of):
    result = engine.generate(CHAT, outputs=["text"], max_tokens=10)
    assert result.text == text_of(conversations["text"].facts["thinker_tokens"])
    ran = {sample.labels["node"] for sample in engine.service.metrics() if sample.name == "mstar_batch_calls"}
    assert ran == {"thinker"}


def test_silent_and_spoken_replies_in_one_batch_are_those_of_each_alone(engine):
    options = {"max_tokens": 15, "temperature": 0.9, "max_audio_frames": 3}
    asked = [(CHAT, ["text"]), (media(), None), (CHAT, None), (media(), ["text"]), (CHAT, ["text"])]

    def answered(number):
        content, outputs = asked[number]
        result = engine.generate(content, outputs=outputs, seed=number, **options)
        return result.text, None if result.audio is None else result.audio.samples.tobytes()

    alone = [answered(number) for number in range(len(asked))]
    with ThreadPoolExecutor(len(asked)) as threads:
        assert list(threads.map(answered, range(len(asked)))) == alone
    assert [speech is None for _, speech in alone] == [True, False, False, True, True]


def test_text_goes_on_when_the_speech_has_ended_long_before(engine):
    options = {"max_tokens": 300, "temperature": 1.0, "top_k": 0, "seed": 4}
    spoken = engine.generate(CHAT, max_audio_frames=1, **options)
    assert spoken.text == engine.generate(CHAT, outputs=["text"], **options).text
    assert spoken.usage["output_tokens"] > 40
    assert (len(spoken.audio.samples), spoken.finish_reason) == (1920 - 555, "length")


def test_a_single_token_is_a_reply_cut_short(writer):
    result = writer.generate(CHAT, max_tokens=1)
    assert len(result.text) == 1
    assert (result.finish_reason, result.usage["output_tokens"]) == ("length", 1)


@pytest.mark.parametrize("with_clips", [False, True])
def test_media_of_all_kinds_are_answered_alike_alone_and_beside_others(writer, with_clips):
    options = {"max_tokens": 12, "temperature": 0.9, "top_k": 0, "use_audio_in_video": with_clips}
    asked = [CHAT, media(), (media()[1], Text("Hm.")), CHAT, (*media()[2:], Text("And?")), media()]
    alone = [writer.generate(content, seed=seed, **options).text for seed, content in enumerate(asked)]
    with ThreadPoolExecutor(len(asked)) as threads:
        together = threads.map(lambda each: writer.generate(each[1], seed=each[0], **options).text, enumerate(asked))
        assert list(together) == alone
    assert len(set(alone)) == len(alone)


def test_three_workers_answer_as_one_does(writer, golden_dir):
    options = {"max_tokens": 12, "temperature": 0.9, "top_k": 0, "seed": 5, "use_audio_in_video": True}
    placement = Placement.model_validate(APART)
    with Engine("qwen-omni", checkpoint=golden_dir, registry=registry_with(plugin), placement=placement) as apart:
        for content in (CHAT, media()):
            assert apart.generate(content, **options).text == writer.generate(content, **options).text


@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="there is no C++ compiler")
def test_compiled_kernels_give_the_recorded_reply_alone_and_beside_others(golden_dir, conversations, text_of):
    placement = Placement.model_validate({**WRITER, "groups": [{"nodes": ["thinker"], "compile": True}]})
    with Engine("qwen-omni", checkpoint=golden_dir, registry=registry_with(plugin), placement=placement) as compiled:
        expected = text_of(conversations["text"].facts["thinker_tokens"])
        with ThreadPoolExecutor(5) as threads:
            texts = threads.map(lambda _: compiled.generate(CHAT, max_tokens=10).text, range(5))
            assert set(texts) == {expected}


def test_nothing_is_held_once_all_is_said(writer):
    ticket = writer.submit(media(), max_tokens=2000)
    next(iter(ticket))
    ticket.cancel()
    writer.generate(media(), max_tokens=3)
    deadline = time.monotonic() + PATIENCE_S
    while held(writer) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not held(writer)


def test_speech_cannot_be_asked_for_where_it_is_left_out(writer):
    with pytest.raises(InvalidRequest, match="makes text, not audio"):
        writer.generate(CHAT, outputs=["audio"])
    assert writer.generate(CHAT, max_tokens=3).audio is None
