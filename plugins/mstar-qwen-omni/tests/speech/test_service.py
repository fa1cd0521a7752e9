"""Text in, speech out, through the whole system."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass

import numpy as np
import pytest
from mstar_qwen_omni import plugin

from mstar_core.client.service import Service
from mstar_core.errors import Cancelled
from mstar_core.spec.content import Audio, Text
from mstar_core.spec.placement import NodeGroup, Placement, WorkerPlace
from mstar_core.testing.plugins import registry_with

MODEL = "qwen-omni"
GREEDY = {
    "temperature": 0.0,
    "talker_temperature": 0.0,
    "predictor_temperature": 0.0,
    "talker_repetition_penalty": 1.0,
}
SAMPLED = {"temperature": 1.0, "max_tokens": 12, "max_audio_frames": 20}
TEXTS = ("Hi.", "Tell me about ship 0.", "One, two, three, and so on.", "?", "A longer text. " * 12)
LONG = Text("Go on.")
"""Its greedy speech has 90 frames and more."""

ENCODERS = ("audio_encoder", "vision_encoder")
PLACEMENTS = {
    "parts apart": (
        NodeGroup(nodes=(*ENCODERS, "thinker"), worker="a"),
        NodeGroup(nodes=("talker",), worker="b"),
        NodeGroup(nodes=("code2wav",), worker="c"),
    ),
    "prompts apart": (
        NodeGroup(nodes=(*ENCODERS, "thinker"), worker="a"),
        NodeGroup(nodes=("talker",), walks=("listen",), worker="b"),
        NodeGroup(nodes=("talker",), walks=("talk",), worker="c"),
        NodeGroup(nodes=("code2wav",), worker="a"),
    ),
    "two of each": (
        NodeGroup(nodes=(*ENCODERS, "thinker"), worker=("a", "b")),
        NodeGroup(nodes=("talker",), worker=("b", "c")),
        NodeGroup(nodes=("code2wav",), worker=("a", "c")),
    ),
}


@dataclass(frozen=True)
class Reply:
    """What came of one request."""

    text: str
    samples: np.ndarray
    reason: str

    @property
    def everything(self):
        return self.text, self.samples.tobytes(), self.reason


def read(ticket):
    contents = list(ticket)
    text = "".join(content.text for content in contents if isinstance(content, Text))
    samples = [content.samples for content in contents if isinstance(content, Audio)]
    return Reply(text, np.concatenate([np.zeros(0, np.float32), *samples]), ticket.end.reason)


@contextlib.contextmanager
def serving(checkpoint, placement=None):
    started = Service.start(
        [MODEL], checkpoints={MODEL: str(checkpoint)}, registry=registry_with(plugin), placement=placement
    )
    with started as service:
        yield service


@pytest.fixture(scope="module")
def service(golden_dir):
    with serving(golden_dir) as running:
        yield running


@pytest.fixture
def changed(tmp_path, fixture_dir):
    """A checkpoint that differs in some values of one of its files."""

    def changing(name, path, value):
        for file in fixture_dir.iterdir():
            (tmp_path / file.name).symlink_to(file)
        values = json.loads((fixture_dir / name).read_text())
        place = values
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        (tmp_path / name).unlink()
        (tmp_path / name).write_text(json.dumps(values))
        return tmp_path

    return changing


def conversation(case):
    return [Text(text, role=role) for role, text in case.facts["chat"]]


def limits(case):
    """As many tokens and frames as were recorded: one token of the recorded talker is not heard."""
    facts = case.facts
    return {
        "max_tokens": facts["thinker_max_new_tokens"],
        "max_audio_frames": facts["talker_max_new_tokens"] - 1,
        "talker_repetition_penalty": facts["talker_repetition_penalty"],
        "voice": facts["speaker"],
    }


@pytest.mark.golden
@pytest.mark.parametrize("name", ["text", "text_reppen", "text_default_penalty", "text_eos"])
def test_speech_when_a_recorded_text_is_answered_then_is_the_recorded_waveform(name, service, spoken):
    case = spoken(name)
    reply = read(service.submit(MODEL, conversation(case), GREEDY | limits(case)))
    np.testing.assert_allclose(reply.samples, case["wav"].numpy(), atol=1e-3, rtol=0)
    assert reply.reason == ("stop" if name == "text_eos" else "length")


@pytest.mark.golden
def test_speech_when_a_recorded_sound_is_answered_then_is_the_recorded_waveform(service, spoken, recorded):
    case = spoken("raw_audio_chat")
    heard = Audio(recorded["preproc_audio/waveform"].numpy(), 16_000)
    reply = read(service.submit(MODEL, [heard, Text("Listen 0.")], GREEDY | limits(case)))
    np.testing.assert_allclose(reply.samples, case["wav"].numpy(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("frames", [1, 2, 3, 9, 33, 60])
@pytest.mark.parametrize("vocoder", ["exact", "compat"])
def test_speech_when_cut_after_some_frames_then_lasts_as_long_as_these(frames, vocoder, service):
    params = GREEDY | {"max_tokens": 4, "max_audio_frames": frames, "vocoder": vocoder}
    reply = read(service.submit(MODEL, [LONG], params))
    assert len(reply.samples) == frames * 1920 - 555
    assert reply.reason == "length"


def test_replies_when_asked_at_the_same_time_then_are_those_of_each_alone(service):
    alone = [read(service.submit(MODEL, [Text(text)], SAMPLED | {"seed": seed})) for seed, text in enumerate(TEXTS)]
    tickets = [service.submit(MODEL, [Text(text)], SAMPLED | {"seed": seed}) for seed, text in enumerate(TEXTS)]
    assert [read(ticket).everything for ticket in tickets] == [reply.everything for reply in alone]
    assert all(len(reply.samples) for reply in alone)


@pytest.mark.parametrize("groups", PLACEMENTS.values(), ids=PLACEMENTS)
def test_replies_when_the_parts_run_on_several_workers_then_are_the_same(groups, golden_dir, service):
    workers = {name: WorkerPlace(device="cpu", threads=1) for name in "abc"}
    wanted = [read(service.submit(MODEL, [Text(text)], SAMPLED | {"seed": seed})) for seed, text in enumerate(TEXTS)]
    with serving(golden_dir, Placement(workers=workers, groups=groups)) as apart:
        tickets = [apart.submit(MODEL, [Text(text)], SAMPLED | {"seed": seed}) for seed, text in enumerate(TEXTS)]
        assert [read(ticket).everything for ticket in tickets] == [reply.everything for reply in wanted]


def test_speech_when_the_first_frame_is_there_then_is_heard_before_the_last(service):
    ticket = service.submit(MODEL, [LONG], GREEDY | {"max_tokens": 4, "max_audio_frames": 30})
    lengths = [len(content.samples) for content in ticket if isinstance(content, Audio)]
    assert lengths[:4] == [1365, 1920, 2 * 1920, 4 * 1920]


def test_reply_when_only_text_is_wanted_then_has_no_speech_and_the_same_text(service):
    params = GREEDY | {"max_tokens": 8, "max_audio_frames": 3}
    spoken = read(service.submit(MODEL, [Text("Hi.")], params))
    silent = read(service.submit(MODEL, [Text("Hi.")], params, outputs=frozenset({"text"})))
    assert not silent.samples.size
    assert silent.text == spoken.text


def test_speech_when_the_reply_is_empty_then_is_none_and_no_error(changed):
    with serving(changed("generation_config.json", ["eos_token_id"], list(range(352)))) as service:
        reply = read(service.submit(MODEL, [Text("Hi.")], GREEDY))
    assert reply.everything == ("", b"", "stop")


def test_speech_when_the_codec_ends_at_once_then_is_none_and_no_error(changed, spoken):
    case = spoken("text")
    first = case.facts["talker_tokens"][0]
    with serving(changed("config.json", ["talker_config", "codec_eos_token_id"], first)) as service:
        reply = read(service.submit(MODEL, conversation(case), GREEDY | limits(case)))
    assert reply.text
    assert not reply.samples.size
    assert reply.reason == "length"  # of the text


def test_speech_when_sampled_then_the_seed_decides(service):
    first, second, third = (
        read(service.submit(MODEL, [LONG], SAMPLED | {"temperature": 0.0, "seed": seed})) for seed in (1, 1, 2)
    )
    assert first.everything == second.everything
    assert first.text == third.text
    assert first.samples.tobytes() != third.samples.tobytes()


def test_speech_when_cancelled_while_it_is_heard_then_nothing_of_it_is_left(service):
    tickets = [service.submit(MODEL, [LONG], {"seed": seed, "max_audio_frames": 2000}) for seed in range(3)]
    for ticket in tickets:
        next(content for content in ticket if isinstance(content, Audio))
        ticket.cancel()
        with pytest.raises(Cancelled):
            list(ticket)
    deadline = time.monotonic() + 20.0
    while held(service) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not held(service)


def held(service):
    """What requests hold: their places, tensors on their way, pages."""
    names = ("mstar_requests_open", "mstar_worker_requests", "mstar_tensors_published", "mstar_kv_pages_used")
    return sum(sample.value for sample in service.metrics() if sample.name in names)
