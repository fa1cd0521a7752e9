import numpy as np
import pytest

from mstar_core.media import encode_audio
from mstar_core.media.tempo import Tempo

SPEEDS = (0.25, 0.4, 0.5, 0.8, 1.25, 2.0, 3.1, 4.0)


def played(samples, speed, rate=24000, chunk=2048):
    tempo = Tempo(rate, speed)
    ready = [tempo.push(samples[start : start + chunk]) for start in range(0, len(samples), chunk)]
    return np.concatenate([*ready, tempo.finish()])


@pytest.mark.parametrize("rate", [8000, 24000, 44100])
@pytest.mark.parametrize("speed", SPEEDS)
def test_length_is_n_over_speed_exactly(speed, rate, speech):
    for count in (0, 1, 99, 2000, 12345):
        assert len(played(speech(count / rate, rate), speed, rate)) == round(count / speed)


@pytest.mark.parametrize("speed", SPEEDS)
def test_pitch_is_kept(speed):
    tone = np.sin(2 * np.pi * 440 * np.arange(48000) / 24000).astype(np.float32)
    slow = played(tone, speed)[2400:-2400]
    peak = np.argmax(np.abs(np.fft.rfft(slow * np.hanning(len(slow)))))
    assert peak * 24000 / len(slow) == pytest.approx(440, abs=6)


@pytest.mark.parametrize("speed", SPEEDS)
def test_sounds_move_to_their_time_over_speed(speed):
    clicks = np.zeros(72000, np.float32)
    for start in (24000, 69000):
        clicks[start : start + 2400] = np.sin(2 * np.pi * 300 * np.arange(2400) / 24000)
    energy = np.abs(played(clicks, speed))
    loud = np.flatnonzero(energy > 0.5)
    first, last = loud[0] / 24000, loud[-1] / 24000
    window = 0.05 * max(1 / speed, 1)  # atempo blends over 43 ms of input
    assert first == pytest.approx(1.0 / speed, abs=window)
    assert last == pytest.approx(71400 / 24000 / speed, abs=window)


@pytest.mark.parametrize("speed", [0.3, 0.9, 1.7, 3.5])
def test_output_when_cut_otherwise_then_same_samples(speed, speech):
    samples = speech(0.4)
    whole = played(samples, speed, chunk=len(samples))
    for chunk in (1, 7, 480, 999):
        assert np.array_equal(played(samples, speed, chunk=chunk), whole)


def test_output_comes_while_input_does(speech):
    tempo = Tempo(24000, 1.5)
    early = sum(len(tempo.push(speech(0.085))) for _ in range(20))
    assert early > 0.8 * 20 * 0.085 * 24000 / 1.5


def test_speed_one_leaves_the_samples_alone(speech):
    samples = speech(0.3)
    assert encode_audio(samples, "pcm", 24000, speed=1.0) == (samples * np.float32(32767)).astype("<i2").tobytes()
