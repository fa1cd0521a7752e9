"""The compressed formats: which codec and container each uses, and a writer that feeds them through PyAV."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
from numpy.typing import NDArray

_SHORTEST_SECONDS = 0.01
"""A lossy body holds at least this much (silence added at its end), since a resampler or codec that gets only a sample
or two may give nothing back, and a body without a frame is not a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """How FFmpeg makes one compressed format."""

    container: str
    encoder: str
    sample_format: str
    lossless: bool = False
    bit_rate: int = 0
    """Bits per second; 0 for the lossless codec."""
    rates: tuple[int, ...] = ()
    """Sampling rates used, ascending, in Hz; empty for any."""
    encoder_options: Mapping[str, str] = field(default_factory=dict)
    muxer_options: Mapping[str, str] = field(default_factory=dict)

    def rate_for(self, sample_rate: int) -> int:
        """The rate to encode at: the least multiple of `sample_rate`, else the next above it, else the highest."""
        if not self.rates:
            return sample_rate
        multiples = [rate for rate in self.rates if rate % sample_rate == 0]
        above = [rate for rate in self.rates if rate > sample_rate]
        return (multiples or above or self.rates[-1:])[0]


# MP3 and ADTS streams cannot say how many samples to drop, so what the encoder adds at both ends is heard as silence:
# for AAC 1024 samples before and up to 1023 after (one frame each), for MP3 1105 before and up to 1200 after. From
# 44.1 kHz up that is less than 55 ms, at 24 kHz 60 to 85; hence no lower rates. A whole MP3 body says it in its
# LAME tag and decodes to the exact length; so does every Opus body (pre-skip and last granule position, RFC 7845).
CODECS: Mapping[str, Codec] = {
    "flac": Codec(
        container="flac",
        encoder="flac",
        sample_format="s16",
        lossless=True,
        encoder_options={"frame_size": "1152"},  # samples: 48 ms at 24 kHz; the encoder's own choice is about 100 ms
        muxer_options={"metadata_header_padding": "0"},  # room for tags, 8 KiB by default
    ),
    "mp3": Codec(container="mp3", encoder="libmp3lame", sample_format="fltp", bit_rate=128_000, rates=(44_100, 48_000)),
    "opus": Codec(
        container="ogg",
        encoder="libopus",
        sample_format="flt",
        bit_rate=64_000,
        rates=(8_000, 12_000, 16_000, 24_000, 48_000),
        muxer_options={"page_duration": "20000"},  # microseconds: a page per packet, not per second
    ),
    "aac": Codec(
        container="adts",
        encoder="aac",
        sample_format="fltp",
        bit_rate=96_000,
        rates=(44_100, 48_000, 64_000, 88_200, 96_000),
    ),
}


class _Pipe:
    """A file that can only be written, so that the muxer never goes back to its header; what came is taken away."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(data)
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


class CodecWriter:
    """16-bit mono samples as one encoded stream.

    With `streaming`, each packet is given out when the codec makes it. Without, the body is kept for the end and the
    muxer completes its header (FLAC's length and checksum, MP3's LAME tag). The same samples give the same bytes,
    however they are cut. PyAV resamples where the codec needs it and releases the GIL while filters and codec run. Its
    filter graph keeps a pool of idle threads, one per core, until the writer is closed and dropped.
    """

    def __init__(self, codec: Codec, sample_rate: int, *, streaming: bool) -> None:
        self._sample_rate = sample_rate
        self._fewest = 0 if codec.lossless else round(_SHORTEST_SECONDS * sample_rate)
        self._pushed = 0
        self._file: _Pipe | io.BytesIO = _Pipe() if streaming else io.BytesIO()
        # bitexact: no random stream serial number and no version strings. flush_packets: no bytes wait in a buffer.
        options = {"fflags": "+bitexact", "flush_packets": "1", **codec.muxer_options}
        self._container = av.open(self._file, "w", format=codec.container, container_options=options)
        rate, encoder_options = codec.rate_for(sample_rate), dict(codec.encoder_options)
        stream = self._container.add_stream(codec.encoder, rate, encoder_options, bit_rate=codec.bit_rate)
        assert isinstance(stream, av.AudioStream)
        stream.layout = "mono"
        stream.format = codec.sample_format
        stream.codec_context.thread_count = 1
        self._stream = stream

    def write(self, pcm: NDArray[np.int16]) -> bytes:
        """Take int16 [samples]; return the bytes that can be sent now."""
        if len(pcm):
            frame = av.AudioFrame.from_ndarray(pcm[np.newaxis], format="s16", layout="mono")
            frame.sample_rate = self._sample_rate
            frame.time_base = Fraction(1, self._sample_rate)
            frame.pts = self._pushed
            self._pushed += len(pcm)
            self._container.mux(self._stream.encode(frame))
        return self._sendable()

    def finish(self) -> bytes:
        """Flush the codec and the container; return what is left (the whole body if not streaming)."""
        sent = self.write(np.zeros(max(self._fewest - self._pushed, 0), np.int16))
        self._container.start_encoding()  # a FLAC without samples is its header
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return sent + (self._file.take() if isinstance(self._file, _Pipe) else self._file.getvalue())

    def close(self) -> None:
        """Free the codec; idempotent."""
        self._container.close()

    def _sendable(self) -> bytes:
        return self._file.take() if isinstance(self._file, _Pipe) else b""
