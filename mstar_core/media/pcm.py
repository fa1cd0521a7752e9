"""Float samples to 16-bit PCM, bare or in a WAV body."""

import struct

import numpy as np
from numpy.typing import NDArray

SAMPLE_BYTES = 2
_WAV_HEADER_BYTES = 44
_UNKNOWN_SIZE = 0xFFFFFFFF
"""Both sizes of a WAV whose length is not known yet. FFmpeg takes it as "until the data ends"; readers that believe it
(Python's `wave`, libsndfile) stop at the end of the data, too."""


def check_samples(samples: NDArray[np.float32], offset: int) -> None:
    """Raise `ValueError` unless `samples` is a float32 vector of finite numbers.

    `offset` is how many samples of the stream came before, so that the error names the position in the stream.
    """
    if samples.dtype != np.float32 or samples.ndim != 1:
        raise ValueError(f"audio must be float32 of shape [samples], not {samples.dtype} of shape {samples.shape}")
    finite = np.isfinite(samples)
    if not finite.all():
        first = int(np.argmin(finite))
        raise ValueError(f"audio sample {offset + first} is {samples[first]}, not a finite number")


def to_pcm(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    """float32 in [-1, 1] to int16: clamp, multiply by 32767, truncate toward zero.

    Truncation, not rounding, is what the published loops of speech codecs do (`(x * 32767).astype(int16)`).
    """
    scaled = np.clip(samples, -1.0, 1.0) * np.float32(32767)
    return scaled.astype("<i2")  # [samples]


def wav_header(sample_rate: int, data_bytes: int | None) -> bytes:
    """The 44 bytes before mono 16-bit samples (RIFF WAVE, format tag 1); `data_bytes` None when not known yet.

    Raises `ValueError` for data that the format's 32-bit sizes cannot count.
    """
    if data_bytes is None:
        riff_size = data_size = _UNKNOWN_SIZE
    else:
        riff_size, data_size = _WAV_HEADER_BYTES - 8 + data_bytes, data_bytes
    if riff_size > _UNKNOWN_SIZE:
        raise ValueError(f"{data_bytes} bytes of samples do not fit a WAV file (4 GiB); ask for flac or a stream")
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, SAMPLE_BYTES * sample_rate, SAMPLE_BYTES, 16)
    return struct.pack("<4sI4s", b"RIFF", riff_size, b"WAVE") + fmt + struct.pack("<4sI", b"data", data_size)


class PcmWriter:
    """16-bit samples as bytes, after a WAV header if `wav`; sent at once, or (not `streaming`) kept for the end."""

    def __init__(self, sample_rate: int, *, wav: bool, streaming: bool) -> None:
        self._sample_rate = sample_rate
        self._header_due = wav
        self._streaming = streaming
        self._kept: list[bytes] = []

    def write(self, pcm: NDArray[np.int16]) -> bytes:
        """Take int16 [samples]; return the bytes that can be sent now."""
        data = pcm.tobytes()
        if self._streaming:
            return self._take_header(None) + data if data else b""
        self._kept.append(data)
        return b""

    def finish(self) -> bytes:
        """What is left: the whole body if not streaming, else at most the header of a body without samples."""
        if self._streaming:
            return self._take_header(None)
        data = b"".join(self._kept)
        return self._take_header(len(data)) + data

    def close(self) -> None:
        """Drop what is kept."""
        self._kept.clear()

    def _take_header(self, data_bytes: int | None) -> bytes:
        if not self._header_due:
            return b""
        self._header_due = False
        return wav_header(self._sample_rate, data_bytes)
