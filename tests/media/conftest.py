import io
import wave

import av
import numpy as np
import pytest


@pytest.fixture
def speech():
    """Makes float32 audio with a voice's pitch, harmonics, syllables and breath noise."""

    def make(seconds: float, rate: int = 24000) -> np.ndarray:
        time = np.arange(round(seconds * rate)) / rate
        voice = sum(np.sin(2 * np.pi * 150 * k * time) / k for k in range(1, 9))
        noise = np.random.default_rng(0).normal(size=time.size)
        return ((0.15 * voice + 0.02 * noise) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * time))).astype(np.float32)

    return make


@pytest.fixture
def seconds():
    """The playing time of a body, as a decoder that knows only the bytes finds it."""

    def measure(body: bytes, format: str, rate: int) -> float:
        if format == "pcm":
            return len(body) / 2 / rate
        with av.open(io.BytesIO(body)) as container:
            frames = list(container.decode(audio=0))
            return sum(frame.samples for frame in frames) / (frames[0].sample_rate if frames else rate)

    return measure


@pytest.fixture
def wav_payload():
    """The samples' bytes of a WAV body, read by the standard library."""

    def read(body: bytes) -> bytes:
        with wave.open(io.BytesIO(body)) as reader:
            assert (reader.getnchannels(), reader.getsampwidth()) == (1, 2)
            return reader.readframes(reader.getnframes())

    return read
