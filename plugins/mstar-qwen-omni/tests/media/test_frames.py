import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mstar_qwen_omni.media.frames import seen

from mstar_core.spec.content import Video


def clip(frames, rate):
    return Video(np.arange(frames, dtype=np.uint16).view(np.uint8).reshape(frames, 1, 1, 2), rate)


def numbers(shown):
    return shown.frames.reshape(len(shown.frames), 2).copy().view(np.uint16).ravel().tolist()


@settings(max_examples=200, deadline=None)
@given(
    frames=st.integers(2, 3000),
    rate=st.sampled_from([1.0, 10.0, 24.0, 25.0, 30000 / 1001, 60.0]),
    wanted=st.sampled_from([0.5, 1.0, 2.0, 3.0, 24.0]),
)
def test_frames_are_chosen_as_transformers_does(frames, rate, wanted):
    most = min(768, frames) // 2 * 2
    kept = int(min(max(frames / rate * wanted, 4), most, frames)) // 2 * 2  # transformers, `sample_frames`
    theirs = torch.arange(0, frames, frames / max(kept, 2)).int().tolist()
    made = numbers(seen(clip(frames, rate), wanted, 2))
    assert made == theirs[: len(made)]
    assert len(theirs) - len(made) in (0, 1)


@pytest.mark.parametrize("fps", [1.0, 2.0, 4.0])
def test_a_step_lasts_what_the_wanted_rate_says(fps):
    assert seen(clip(240, 24.0), fps, 2).seconds == 2 / fps


@pytest.mark.parametrize(("frames", "rate", "kept", "seconds"), [(10, 1.0, 10, 2.0), (24, 24.0, 4, 0.5)])
def test_a_step_of_a_clip_that_cannot_be_seen_at_that_rate_lasts_what_it_really_does(frames, rate, kept, seconds):
    shown = seen(clip(frames, rate), 2.0, 2)
    assert (len(shown.frames), shown.seconds) == (kept, seconds)


def test_a_clip_of_one_frame_is_kept():
    shown = seen(clip(1, 5.0), 2.0, 2)
    assert (len(shown.frames), shown.seconds) == (1, 0.4)
