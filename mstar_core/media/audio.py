"""Mono float samples to the bytes of an audio format, while the samples are being made or all at once."""

from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mstar_core.media.codec import CODECS, CodecWriter
from mstar_core.media.formats import AudioFormat, audio_format, check_sample_rate
from mstar_core.media.pcm import PcmWriter, check_samples, to_pcm
from mstar_core.media.tempo import Tempo, check_speed


class _Writer(Protocol):
    def write(self, pcm: NDArray[np.int16]) -> bytes: ...
    def finish(self) -> bytes: ...
    def close(self) -> None: ...


class AudioEncoder:
    """Turns the audio of one request into one body of a format.

    Every format carries the same 16-bit samples, those of `pcm`. The concatenation of all that `encode` and `finish`
    return is one file: one header, decodable in one pass, as long as the samples within 60 ms (wav, pcm, flac and opus:
    exactly). Samples cut into other chunks give the same body. No samples at all give a valid file: without
    samples for wav, pcm and flac, with at most 55 ms of silence for the lossy ones.

    `streaming=True`: bytes come as soon as the codec has a frame (20 to 50 ms of audio at 24 kHz), and the
    header leaves the length open. `streaming=False`: `finish` returns the whole body, its header complete.

    `sample_rate` is that of the samples, 4000 to 192000 Hz; a codec without that rate gets them resampled. `speed`
    (0.25 to 4.0) changes the tempo and keeps the pitch: n samples become round(n / speed).

    Raises `UnknownFormat`, or `ValueError` for a rate or speed out of range. The HTTP server and the CLI make one for
    each request and use it from one thread at a time.
    """

    def __init__(self, format: str, sample_rate: int, speed: float = 1.0, streaming: bool = True) -> None:
        self.format: AudioFormat = audio_format(format)
        check_sample_rate(sample_rate)
        check_speed(speed)
        self._taken = 0
        self._tempo = None if speed == 1.0 else Tempo(sample_rate, speed)
        self._writer: _Writer | None = _writer(self.format, sample_rate, streaming)

    def encode(self, samples: NDArray[np.float32]) -> bytes:
        """Take float32 [n] in [-1, 1], n >= 0 (what lies outside is clamped); return what can be sent now, maybe b"".

        Raises `ValueError`, and takes nothing, for another dtype or shape, a NaN or an infinity (naming its position
        in the stream), or after `finish` or `close`.
        """
        writer = self._open_writer()
        check_samples(samples, self._taken)
        self._taken += len(samples)
        return writer.write(to_pcm(self._tempo.push(samples) if self._tempo else samples))

    def finish(self) -> bytes:
        """End the stream and return the rest of the body; the encoder is then closed."""
        writer = self._open_writer()
        rest = writer.write(to_pcm(self._tempo.finish())) if self._tempo else b""
        rest += writer.finish()
        self.close()
        return rest

    def close(self) -> None:
        """Free the codec, at any time and as often as you like; a body not finished stays cut short."""
        self._tempo = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open_writer(self) -> _Writer:
        if self._writer is None:
            raise ValueError("this audio encoder is finished or closed; make a new one for each body")
        return self._writer


def encode_audio(samples: NDArray[np.float32], format: str, sample_rate: int, speed: float = 1.0) -> bytes:
    """The whole body of `format` for float32 [n] samples: see `AudioEncoder`, which also names the errors."""
    with AudioEncoder(format, sample_rate, speed, streaming=False) as encoder:
        return encoder.encode(samples) + encoder.finish()


def _writer(format: AudioFormat, sample_rate: int, streaming: bool) -> _Writer:
    if format.name in CODECS:
        return CodecWriter(CODECS[format.name], sample_rate, streaming=streaming)
    return PcmWriter(sample_rate, wav=format.name == "wav", streaming=streaming)
