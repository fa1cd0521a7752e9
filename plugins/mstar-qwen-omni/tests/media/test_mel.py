import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st
from mstar_qwen_omni.media.mel import frame_count, mel_features

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def theirs(settings):
    sound = settings.sound
    return transformers.WhisperFeatureExtractor(
        feature_size=sound.bands,
        sampling_rate=sound.rate,
        hop_length=sound.hop,
        n_fft=sound.window,
        chunk_length=300,
    )


def reference(theirs, clips):
    """The features of clips that are heard together, without what the mask hides.

    Of the extractor's two ways to compute them the one in double precision: the other is off by 1e-5 and more where
    a band is quiet.
    """
    masks = theirs(
        clips, padding=True, truncation=False, sampling_rate=16000, return_attention_mask=True, return_tensors="np"
    )["attention_mask"]
    longest = max(map(len, clips))
    together = np.stack([np.pad(clip, (0, longest - len(clip))) for clip in clips])
    made = theirs._np_extract_fbank_features(together, "cpu")
    return [features[:, :frames] for features, frames in zip(made, masks.sum(1), strict=True)]


def noise(samples, seed=0):
    steps = np.random.default_rng(seed).standard_normal(samples).astype(np.float32)
    return steps * np.float32(0.1) * (1 + np.sin(np.arange(samples) / 900)).astype(np.float32)


@trials(max_examples=30, deadline=None)
@given(samples=st.integers(201, 40_000))
def test_features_of_a_clip_alone_are_transformers(samples, theirs, settings):
    clip = noise(samples, samples)
    (wanted,) = reference(theirs, [clip])
    made = mel_features(clip, settings.sound)
    assert made.shape == wanted.shape == (128, frame_count(samples, settings.sound))
    np.testing.assert_allclose(made, wanted, atol=1e-5)


@trials(max_examples=20, deadline=None)
@given(samples=st.lists(st.integers(201, 30_000), min_size=2, max_size=4))
def test_features_of_clips_padded_to_the_longest_are_transformers(samples, theirs, settings):
    clips = [noise(each, each) for each in samples]
    for clip, wanted in zip(clips, reference(theirs, clips), strict=True):
        made = mel_features(clip, settings.sound, padded=max(samples))
        assert made.shape == wanted.shape
        np.testing.assert_allclose(made, wanted, atol=1e-5)


def test_features_of_a_long_clip_are_those_of_transforming_it_at_once(theirs, settings):
    clip = noise(16000 * 60)  # more frames than are transformed together
    np.testing.assert_allclose(mel_features(clip, settings.sound), reference(theirs, [clip])[0], atol=1e-5)


def test_silence_is_the_floor_everywhere(settings):
    assert np.ptp(mel_features(np.zeros(1600, np.float32), settings.sound)) == 0
