"""The node `code2wav`: many requests' chunks, exact and as the reference cuts them."""

from __future__ import annotations

import pytest
import torch
from mstar_qwen_omni.speech.vocoder import Vocoder

from mstar_core.engines.base import BatchLimits, Call, Chunk, NodeRequest
from mstar_core.engines.stateless import StatelessEngine


@pytest.fixture(scope="module")
def engine(golden_dir, context):
    return StatelessEngine(Vocoder(context(golden_dir)))


class Sounding:
    """One request's frames and what was heard of them."""

    def __init__(self, engine, key, codes, mode, sizes):
        self.request = NodeRequest(key, {"vocoder": mode}, 0)
        engine.open(self.request)
        self.frames, self.sizes, self.heard, self.step, self.place = list(codes), list(sizes), [], 0, 0

    def call(self):
        stop = self.place + self.sizes[self.step]
        final = self.step + 1 == len(self.sizes)
        chunk = Chunk(tuple(self.frames[self.place : stop]), 0, self.place, final)
        self.step, self.place = self.step + 1, stop
        return Call(self.request, "sound", {"codes": chunk}, self.step - 1)

    @property
    def going(self):
        return self.step < len(self.sizes)


def run(engine, soundings):
    """Give everybody chunk after chunk; each gets all its samples in the end."""
    while any(each.going for each in soundings):
        calls = {each.call(): each for each in soundings if each.going}
        waiting = list(calls)
        while waiting:
            batch = engine.collect("sound", waiting, BatchLimits())
            engine.run(batch)
            for call, outcome in zip(batch.calls, engine.finish(batch), strict=True):
                assert not isinstance(outcome, Exception), outcome
                calls[call].heard += [outcome["audio"]] if "audio" in outcome else []
            waiting = [call for call in waiting if call not in batch.calls]
    return [torch.cat(each.heard) if each.heard else torch.empty(0) for each in soundings]


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)


@pytest.mark.parametrize("sizes", [[40], [1, 1, 2, 4, 8, 16, 8], [25, 15], [40, 0]])
def test_exact_when_frames_come_in_chunks_then_is_the_recorded_full_decode(sizes, engine, recorded):
    (heard,) = run(engine, [Sounding(engine, 1, recorded["code2wav/codes"].T, "exact", sizes)])
    close(heard, recorded["code2wav/wav_full"])


@pytest.mark.parametrize("sizes", [[330], [1, 1, 2, 4, 8, 16, *[25] * 11, 23], [300, 30], [300, 30, 0]])
def test_compat_when_frames_come_in_chunks_then_is_the_recorded_chunked_decode(sizes, engine, recorded):
    (heard,) = run(engine, [Sounding(engine, 2, recorded["code2wav_default_chunks/codes"].T, "compat", sizes)])
    assert len(heard) == 632490
    close(heard[:4000], recorded["code2wav_default_chunks/head"])
    close(heard[571445:579445], recorded["code2wav_default_chunks/around_boundary"])
    close(heard[-4000:], recorded["code2wav_default_chunks/tail"])


def test_samples_when_requests_of_both_modes_run_side_by_side_then_have_the_bits_of_each_alone(engine, recorded):
    codes = recorded["code2wav/codes"].T
    plans = [
        (codes, "exact", [1, 1, 2, 4, 8, 16, 8]),
        (codes.flip(0), "exact", [1, 1, 2, 4, 8, 16, 8]),
        (codes[:9], "exact", [1, 1, 2, 4, 1]),
        (codes[:20], "compat", [1, 1, 2, 4, 8, 4]),
        (codes.flip(0)[:32], "exact", [1, 1, 2, 4, 8, 16, 0]),
    ]
    together = run(engine, [Sounding(engine, 10 + key, *plan) for key, plan in enumerate(plans)])
    for key, (plan, heard) in enumerate(zip(plans, together, strict=True)):
        (alone,) = run(engine, [Sounding(engine, 20 + key, *plan)])
        assert torch.equal(alone, heard)


@pytest.mark.parametrize("mode", ["exact", "compat"])
def test_samples_when_the_stream_is_empty_then_are_none(mode, engine, recorded):
    (heard,) = run(engine, [Sounding(engine, 3, recorded["code2wav/codes"].T, mode, [0])])
    assert heard.numel() == 0


def test_frames_when_one_is_no_code_then_the_others_are_heard_as_if_alone(engine, recorded):
    codes = recorded["code2wav/codes"].T
    wrong = Sounding(engine, 4, torch.full_like(codes, 10**6), "exact", [1, 1])
    right = Sounding(engine, 5, codes, "exact", [1, 1])
    batch = engine.collect("sound", [wrong.call(), right.call()], BatchLimits())
    engine.run(batch)
    failed, heard = engine.finish(batch)
    assert isinstance(failed, Exception)
    (alone,) = run(engine, [Sounding(engine, 6, codes, "exact", [1, 1])])
    (rest,) = run(engine, [right])
    assert torch.equal(torch.cat([heard["audio"], rest]), alone)
