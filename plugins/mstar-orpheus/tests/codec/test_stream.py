import random

import pytest
import torch
from mstar_orpheus.codec.chunks import COMPAT_CONTEXT, context_frames
from mstar_orpheus.codec.stream import (
    Chunk,
    decode_compat,
    decode_exact,
    decode_windows,
    to_pcm16,
)

SEED = 2**40 + 17


def random_codes(config, frames, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, config.codebook_size, (frames, config.ids_per_frame), generator=generator)


def chunks_of(codes, sizes, left, seed=None):
    seen = 0
    for index, new in enumerate(sizes):
        context = min(left, seen)
        yield Chunk(
            codes=codes[seen - context : seen + new],
            position=seen - context,
            context=context,
            final=index == len(sizes) - 1,
            seed=seed,
        )
        seen += new


def stream(decode, decoder, codes, sizes, left, seed=None):
    return torch.cat([decode(decoder, [chunk])[0] for chunk in chunks_of(codes, sizes, left, seed)])


def sizes_of(frames, step):
    return [min(step, frames - start) for start in range(0, frames, step)]


def random_sizes(frames, rng):
    sizes = []
    while sum(sizes) < frames:
        sizes.append(rng.randint(0, min(9, frames - sum(sizes))))
    return [*sizes, 0] if rng.random() < 0.5 else sizes


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize("seed", [None, SEED])
def test_exact_stream_in_even_chunks_is_the_whole_decode(small, step, seed):
    codes = random_codes(small.config, 26)
    whole = decode_windows(small, codes[None], [0], None if seed is None else [seed])[0]
    streamed = stream(decode_exact, small, codes, sizes_of(26, step), context_frames(small.config), seed)
    torch.testing.assert_close(streamed, whole, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", range(12))
def test_exact_stream_in_random_chunks_is_the_whole_decode(small, case):
    rng = random.Random(case)
    frames = [1, 2, 3, 4, 5, 6, 100][case] if case < 7 else rng.randint(1, 100)
    codes = random_codes(small.config, frames, case)
    whole = decode_windows(small, codes[None], [0], [case])[0]
    streamed = stream(decode_exact, small, codes, random_sizes(frames, rng), context_frames(small.config), case)
    assert len(streamed) == frames * small.config.samples_per_frame
    torch.testing.assert_close(streamed, whole, atol=1e-4, rtol=0)


def test_exact_stream_of_no_frames_is_silent(small):
    empty = Chunk(codes=random_codes(small.config, 0), position=0, context=0, final=True)
    assert decode_exact(small, [empty])[0].shape == (0,)
    assert decode_compat(small, [empty])[0].shape == (0,)


def test_exact_stream_emits_as_soon_as_three_frames_are_there(small):
    codes = random_codes(small.config, 3)
    emitted = [len(decode_exact(small, [chunk])[0]) for chunk in chunks_of(codes, [1, 1, 1, 0], 5)]
    assert emitted == [0, 0, 1387, 3 * 2048 - 1387]


def test_noise_of_the_stream_is_keyed_by_seed(small):
    codes = random_codes(small.config, 4)
    silent, one, again, other = (decode_windows(small, codes[None], [0], seeds)[0] for seeds in (None, [1], [1], [2]))
    assert torch.equal(one, again)
    assert (one - silent).abs().max() > 1e-3
    assert (one - other).abs().max() > 1e-3


def test_compat_window_is_an_isolated_decode_of_four_frames(small):
    codes = random_codes(small.config, 9)
    whole = [decode_windows(small, codes[None, first : first + 4], [first])[0] for first in range(6)]
    expected = torch.cat([window[2048:4096] for window in whole])
    for step in (1, 4, 9):
        streamed = stream(decode_compat, small, codes, sizes_of(9, step), COMPAT_CONTEXT)
        torch.testing.assert_close(streamed, expected, atol=1e-5, rtol=0)


def test_compat_stream_is_the_same_bits_however_it_is_cut(small):
    codes = random_codes(small.config, 20)
    streams = [stream(decode_compat, small, codes, sizes_of(20, step), COMPAT_CONTEXT, SEED) for step in (1, 3, 8, 20)]
    assert all(torch.equal(streams[0], other) for other in streams)


def test_pcm_is_cut_towards_zero():
    samples = torch.tensor([0.99999, -0.99999, 0.5, -0.5, 1.0, -1.0])
    assert to_pcm16(samples).tolist() == [32766, -32766, 16383, -16383, 32767, -32767]


@pytest.mark.parametrize("bad", [-1, 32])
def test_codes_outside_the_codebook_raise(small, bad):
    codes = random_codes(small.config, 4)
    codes[2, 3] = bad
    with pytest.raises(ValueError, match="codes must lie between 0 and 31"):
        decode_windows(small, codes[None], [0])


def test_codes_of_another_shape_raise(small):
    with pytest.raises(ValueError, match=r"codes must be \[batch, frames, 7\], found \[4, 7\]"):
        decode_windows(small, random_codes(small.config, 4), [0])


@pytest.mark.golden
@pytest.mark.parametrize("step", [1, 2, 3, 5, 8])
def test_exact_stream_of_the_recorded_ids_is_the_reference_s_whole_decode(golden, cases, facts, step):
    codes = recorded_codes(golden, cases, facts, "snac_full")
    streamed = stream(decode_exact, golden, codes, sizes_of(len(codes), step), context_frames(golden.config))
    torch.testing.assert_close(streamed, cases["snac_full/wav_zero_noise"], atol=1e-4, rtol=0)


@pytest.mark.golden
@pytest.mark.parametrize("step", [1, 4, 50])
@pytest.mark.parametrize(
    ("case", "expected"),
    [("snac_stream", "chunks_float"), ("snac_stream_zero_code", "chunks_float_all_tokens_kept")],
)
def test_compat_stream_of_the_recorded_ids_is_the_reference_s(golden, cases, facts, step, case, expected):
    codes = recorded_codes(golden, cases, facts, case)
    streamed = stream(decode_compat, golden, codes, sizes_of(len(codes), step), COMPAT_CONTEXT)
    torch.testing.assert_close(streamed, cases[f"{case}/{expected}"].flatten(), atol=1e-4, rtol=0)


@pytest.mark.golden
def test_compat_pcm_of_the_recorded_ids_is_the_reference_s_within_one(golden, cases, facts):
    codes = recorded_codes(golden, cases, facts, "snac_stream")
    streamed = to_pcm16(stream(decode_compat, golden, codes, [len(codes)], COMPAT_CONTEXT))
    difference = streamed.int() - cases["snac_stream/chunks_int16"].flatten().int()
    assert difference.abs().max() <= 1


@pytest.mark.golden
def test_recorded_windows_are_those_of_the_stream(golden, cases, facts):
    codes = recorded_codes(golden, cases, facts, "snac_stream")
    ids = cases["snac_stream/windows"]
    base, size = facts["token_ids"]["audio_base"], golden.config.codebook_size
    windows = ids - base - torch.arange(golden.config.ids_per_frame) * size if int(ids.max()) >= base else ids
    assert torch.equal(windows, codes.unfold(0, 4, 1).transpose(1, 2))


def recorded_codes(golden, cases, facts, case):
    slots = golden.config.ids_per_frame
    ids = cases[f"{case}/audio_tokens"].view(-1, slots)
    return ids - facts["token_ids"]["audio_base"] - torch.arange(slots) * golden.config.codebook_size
