import pytest
from hypothesis import given
from hypothesis import strategies as st
from mstar_orpheus.codec.chunks import (
    COMPAT_CONTEXT,
    compat_windows,
    context_frames,
    first_audio_frames,
    samples_of_chunk,
)
from mstar_orpheus.codec.config import SnacConfig
from mstar_orpheus.codec.reach import Rows, left_reach, right_reach


@pytest.fixture(scope="module")
def config():
    return SnacConfig(
        sampling_rate=24000,
        encoder_dim=48,
        encoder_rates=(2, 4, 8, 8),
        decoder_dim=1024,
        decoder_rates=(8, 8, 4, 2),
        codebook_size=4096,
        codebook_dim=8,
        vq_strides=(4, 2, 1),
    )


def chunks_of(sizes, left):
    """(position, context, frames, final) of chunks with `sizes` new frames and up to `left` of context."""
    seen = 0
    for index, new in enumerate(sizes):
        context = min(left, seen)
        yield seen - context, context, context + new, index == len(sizes) - 1
        seen += new


def test_exact_chunks_of_the_24_khz_model_need_five_frames_of_context(config):
    assert context_frames(config) == 5
    assert first_audio_frames(config) == 3


def test_first_audio_of_an_exact_stream_comes_after_three_frames(config):
    assert not samples_of_chunk(config, 0, 0, 2, final=False)
    assert samples_of_chunk(config, 0, 0, 3, final=False) == Rows(0, 1387)
    assert samples_of_chunk(config, 0, 3, 4, final=False) == Rows(1387, 3435)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(5, 9))
def test_exact_chunks_emit_every_sample_once_and_only_when_it_is_final(config, sizes, left):
    emitted = 0
    for position, context, frames, final in chunks_of(sizes, left):
        keep = samples_of_chunk(config, position, context, frames, final)
        origin = position * config.samples_per_frame
        assert origin + keep.start == emitted
        if keep:
            assert not position or keep.start >= left_reach(config)
            assert final or keep.stop <= frames * config.samples_per_frame - right_reach(config)
        emitted += len(keep)
    assert emitted == sum(sizes) * config.samples_per_frame


def test_exact_chunk_with_too_little_context_raises_and_says_how_much(config):
    with pytest.raises(ValueError, match="at frame 6 has 4 frames of context; exact decoding needs 5"):
        samples_of_chunk(config, 6, 4, 6, final=False)
    with pytest.raises(ValueError, match="exact decoding needs 5"):
        samples_of_chunk(config, 10, 0, 0, final=True)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(3, 6))
def test_compat_chunks_give_one_window_for_every_frame_from_the_fourth(config, sizes, left):
    starts = [
        position + first
        for position, context, frames, _ in chunks_of(sizes, left)
        for first in compat_windows(position, context, frames)
    ]
    assert starts == list(range(max(sum(sizes) - COMPAT_CONTEXT, 0)))


def test_compat_chunk_with_too_little_context_raises(config):
    with pytest.raises(ValueError, match="at frame 6 has 2 frames of context; compat decoding needs 3"):
        compat_windows(6, 2, 4)


@pytest.mark.parametrize(("position", "context", "frames"), [(-1, 0, 1), (0, 2, 1), (0, -1, 1)])
def test_chunk_that_is_none_raises(config, position, context, frames):
    with pytest.raises(ValueError, match="not a chunk"):
        samples_of_chunk(config, position, context, frames, final=False)
