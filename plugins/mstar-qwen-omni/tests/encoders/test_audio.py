import pytest
import torch
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st
from mstar_qwen_omni.encoders.rows import rows_of

CLOSE = {"atol": 1e-5, "rtol": 0}


@trials(max_examples=200, deadline=None)
@given(frames=st.integers(1, 5000))
def test_rows_of_a_sound_are_as_many_as_the_reference_counts(frames):
    module = pytest.importorskip("transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe")
    assert rows_of(frames, 100) == module._get_feat_extract_output_lengths(frames)


@pytest.mark.parametrize("frames", [1, 7, 8, 99, 100, 101, 437, 900])
def test_a_sound_gives_as_many_rows_as_are_counted(audio, encode, sound, frames):
    (made,) = encode(audio, sound(frames))
    assert made["heard"].shape == (rows_of(frames, 100), 64)
    assert made["heard"].dtype == torch.float32


def test_a_sound_is_heard_alike_whatever_is_heard_beside_it(audio, encode, sound):
    sounds = [sound(frames, seed=frames) for frames in (437, 12, 100, 250, 12, 60)]
    for together, each in zip(encode(audio, *sounds), sounds, strict=True):
        (alone,) = encode(audio, each)
        assert torch.equal(together["heard"], alone["heard"])


def test_padding_to_a_longer_neighbour_changes_a_short_sound(audio, encode, sound):
    own, compat = (encode(audio, sound(50, width))[0]["heard"] for width in (50, 100))
    assert own.shape == compat.shape
    assert (own - compat).abs().max() > 1e-3


def test_windows_attend_only_within_themselves(audio, encode, sound, config):
    frames = config.audio.window * 2
    first, second = sound(frames), sound(frames)
    second["clips"] = second["clips"].clone()
    second["clips"][:, : config.audio.window] = 0
    rows = [made["heard"] for made in encode(audio, first, second)]
    half = len(rows[0]) // 2
    torch.testing.assert_close(rows[0][half:], rows[1][half:], **CLOSE)
    assert (rows[0][:half] - rows[1][:half]).abs().max() > 1e-3
