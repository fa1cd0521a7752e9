"""The decoder of the codec as a stream."""

from __future__ import annotations

import pytest
import torch
from mstar_qwen_omni.speech.chunks import CHUNKS
from mstar_qwen_omni.speech.code2wav.decoder import START, lag

from mstar_core.spec.chunks import Cursor, next_chunk


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def codes(frames, seed=0):
    return torch.randint(64, (frames, 16), generator=torch.Generator().manual_seed(seed))


def streamed(decoder, frames, sizes):
    stream, parts = START, []
    for piece in torch.split(frames, sizes):
        samples, (stream,) = decoder.decode(piece[None], [stream])
        parts.append(samples[0])
    return torch.cat(parts)


def policy_sizes(frames):
    """The chunks that `CHUNKS` cuts a stream of so many frames into."""
    cursor, sizes = Cursor(), []
    while (cut := next_chunk(CHUNKS, cursor, frames, done=True)) and cut[0].stop > cut[0].start:
        sizes.append(cut[0].stop - cursor.seen)
        cursor = cut[1]
        if cut[0].final:
            break
    return sizes


@pytest.mark.parametrize("frames", [1, 2, 3, 7, 8, 31, 57, 83, 140])
def test_samples_when_frames_are_streamed_then_are_those_of_one_decode_in_number_and_value(frames, code2wav):
    given = codes(frames)
    whole = code2wav.whole(given)
    assert len(whole) == frames * 1920 - 555
    torch.testing.assert_close(streamed(code2wav, given, policy_sizes(frames)), whole, atol=1e-4, rtol=0)


@pytest.mark.parametrize("sizes", [[1] * 40, [3, 37], [39, 1], [8] * 5, [25, 15], [2, 30, 8]])
def test_samples_when_a_stream_is_cut_anywhere_then_are_those_of_one_decode(sizes, code2wav):
    given = codes(40)
    torch.testing.assert_close(streamed(code2wav, given, sizes), code2wav.whole(given), atol=1e-4, rtol=0)


def test_samples_when_streams_of_different_ages_share_a_batch_then_have_the_bits_of_each_alone(code2wav):
    ages = [1, 5, 20, 70]
    given = [codes(age, seed=age) for age in ages]
    more = torch.stack([codes(4, seed=100 + age) for age in ages])
    streams = [code2wav.decode(each[None], [START])[1][0] for each in given]
    together, after = code2wav.decode(more, streams)
    for index, stream in enumerate(streams):
        samples, (alone,) = code2wav.decode(more[index : index + 1], [stream])
        assert torch.equal(samples[0], together[index])
        assert torch.equal(alone.memory, after[index].memory)
        assert alone.frames == after[index].frames == ages[index] + 4


def test_memory_when_a_stream_goes_on_then_does_not_grow(code2wav):
    _, (early,) = code2wav.decode(codes(1)[None], [START])
    _, (late,) = code2wav.decode(codes(90)[None], [early])
    assert early.memory.shape == late.memory.shape


def test_streams_when_one_begins_and_one_does_not_then_are_refused_in_one_batch(code2wav):
    _, (stream,) = code2wav.decode(codes(3)[None], [START])
    with pytest.raises(AssertionError, match="begin"):
        code2wav.decode(codes(2).expand(2, -1, -1), [stream, START])


def test_lag_when_asked_then_is_what_the_transposed_convolutions_cut_off(code2wav):
    assert code2wav.lag == lag(code2wav.config) == 555
