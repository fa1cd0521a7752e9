"""Audio bytes from a client to mono float samples, bounded before and while they are decoded."""

import io
from collections.abc import Iterator

import av
import numpy as np
from av.container import InputContainer
from numpy.typing import NDArray

from mstar_core.media.errors import UnreadableMedia
from mstar_core.media.formats import MAX_SAMPLE_RATE, MIN_SAMPLE_RATE
from mstar_core.media.sniff import IMAGES, first_bytes, kind_of

DEFAULT_MAX_SECONDS = 300.0

_READABLE = "wav, flac, ogg, mp3, aac (ADTS), mp4/m4a or webm"
_FULL_SCALE = {"u8": 128, "s16": 32768, "s32": 2147483648, "flt": 1, "dbl": 1}


class UndecodableAudio(UnreadableMedia):
    """The bytes are not audio that can be read; the message says what they are. A client's mistake: 400."""


class AudioTooLong(UnreadableMedia):
    """The audio lasts longer than the limit, which the message names. A client's mistake: 400."""


def decode_audio(data: bytes, *, max_seconds: float = DEFAULT_MAX_SECONDS) -> tuple[NDArray[np.float32], int]:
    """Decode the first audio track of an encoded file.

    Returns (float32 [n] mono in [-1, 1], the sampling rate in Hz at which it was coded); several channels are averaged.
    Raises `UndecodableAudio` for bytes that are no readable audio, that a decoder finds damaged, or that hold NaN or
    infinity, and `AudioTooLong` past `max_seconds`, having decoded no more than that. Frontend only.
    """
    container_name = _container_name(data)
    try:
        # The demuxer is chosen here, never guessed by FFmpeg: some of those it could guess (playlists, concat scripts)
        # open the files and addresses that they name.
        with av.open(io.BytesIO(data), "r", format=container_name, metadata_errors="replace") as container:
            return _decode_track(container, max_seconds)
    except av.FFmpegError as error:
        raise UndecodableAudio(f"the {container_name} data cannot be decoded: {error.strerror}") from error


def _container_name(data: bytes) -> str:
    """FFmpeg's name of the container, by its first bytes."""
    kind = kind_of(data)
    if kind is None or kind in IMAGES:
        raise UndecodableAudio(f"the bytes are not audio that can be read ({first_bytes(data)}); send {_READABLE}")
    return kind


def _decode_track(container: InputContainer, max_seconds: float) -> tuple[NDArray[np.float32], int]:
    if not container.streams.audio:
        raise UndecodableAudio("the file has no audio track")
    stream = container.streams.audio[0]
    if stream.codec_context is None:
        raise UndecodableAudio("the file's audio track uses a codec that is not known here")
    sample_rate = stream.codec_context.sample_rate
    if not MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE:
        raise UndecodableAudio(f"sampling rate {sample_rate} Hz is outside {MIN_SAMPLE_RATE}..{MAX_SAMPLE_RATE} Hz")
    stream.codec_context.thread_count = 1
    parts = [np.zeros(0, np.float32)]
    left = int(max_seconds * sample_rate)
    for frame in _frames(container, stream):
        left -= frame.samples
        if left < 0:
            raise AudioTooLong(f"the audio lasts longer than {max_seconds:g} s")
        if frame.sample_rate != sample_rate:
            raise UndecodableAudio(f"the sampling rate changes from {sample_rate} to {frame.sample_rate} Hz")
        parts.append(_mono(frame))
    samples = np.concatenate(parts)
    if not np.isfinite(samples).all():
        raise UndecodableAudio(f"sample {int(np.argmin(np.isfinite(samples)))} is not a finite number")
    return samples, sample_rate


def _frames(container: InputContainer, stream: av.AudioStream) -> Iterator[av.AudioFrame]:
    for packet in container.demux(stream):
        for frame in packet.decode():
            assert isinstance(frame, av.AudioFrame)
            yield frame


def _mono(frame: av.AudioFrame) -> NDArray[np.float32]:
    """The mean of a frame's channels, full scale 1.0: float32 [samples]."""
    sample_format = frame.format.packed.name
    if sample_format not in _FULL_SCALE:
        raise UndecodableAudio(f"the audio decodes to {sample_format} samples, which are not read here")
    array = frame.to_ndarray()  # planar [channels, samples], else [1, samples * channels]
    if not frame.format.is_planar:
        array = array.reshape(frame.samples, -1).T
    mono: NDArray[np.float64] = array.mean(axis=0, dtype=np.float64)  # [samples]
    if sample_format == "u8":
        mono -= 128
    return (mono / _FULL_SCALE[sample_format]).astype(np.float32)
