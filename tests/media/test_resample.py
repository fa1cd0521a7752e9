import numpy as np
import pytest

from mstar_core.media.resample import resample


def tone(frequency, rate, seconds=1.0):
    return np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 24000, 44100, 48000])
def test_a_tone_resampled_keeps_its_length_phase_and_loudness(rate):
    made = resample(tone(440, rate), rate, 16000)
    assert made.dtype == np.float32
    assert len(made) == 16000
    np.testing.assert_allclose(made[400:-400], tone(440, 16000)[400:-400], atol=2e-3)


def test_a_tone_above_the_new_band_is_gone():
    assert np.abs(resample(tone(9000, 48000), 48000, 16000))[200:-200].max() < 0.01


@pytest.mark.parametrize("samples", [0, 1, 2, 31, 479])
def test_a_short_sound_has_the_length_that_belongs_to_it(samples):
    assert len(resample(np.ones(samples, np.float32), 48000, 16000)) == round(samples / 3)


def test_samples_at_the_target_rate_are_left_alone():
    samples = tone(100, 16000)
    assert resample(samples, 16000, 16000) is not None
    np.testing.assert_array_equal(resample(samples, 16000, 16000), samples)
