import io
import struct
import wave

import av
import numpy as np
import pytest

from mstar_core.media import AudioTooLong, UndecodableAudio, decode_audio, encode_audio


def wav(samples, rate=24000, channels=1):
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(samples.dtype.itemsize)
        writer.setframerate(rate)
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def float_wav(samples, rate=24000):
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3, 1, rate, 4 * rate, 4, 32)
    data = np.asarray(samples, "<f4").tobytes()
    return (
        struct.pack("<4sI4s", b"RIFF", 36 + len(data), b"WAVE") + fmt + struct.pack("<4sI", b"data", len(data)) + data
    )


def muxed(container, codec, samples, rate):
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[np.newaxis], format="flt", layout="mono")
        frame.sample_rate = rate
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


def test_wav_of_16_bits_is_read_at_full_scale_32768():
    samples, rate = decode_audio(wav(np.array([0, 16384, -32768], np.int16), 16000))
    assert rate == 16000
    assert samples.dtype == np.float32
    assert samples.tolist() == [0.0, 0.5, -1.0]


def test_wav_of_8_bits_is_centred():
    assert decode_audio(wav(np.array([128, 255, 0], np.uint8)))[0].tolist() == [0.0, 127 / 128, -1.0]


def test_stereo_is_averaged():
    assert decode_audio(wav(np.array([16384, 0, 16384, -16384], np.int16), channels=2))[0].tolist() == [0.25, 0.0]


def test_float_wav_is_taken_as_it_is():
    assert decode_audio(float_wav([0.125, -0.75]))[0].tolist() == [0.125, -0.75]


@pytest.mark.parametrize(("container", "codec"), [("mp4", "aac"), ("webm", "libopus")])
def test_what_browsers_and_phones_record_is_read(container, codec, speech):
    samples, rate = decode_audio(muxed(container, codec, speech(0.5, 48000), 48000))
    assert rate == 48000
    assert len(samples) / rate == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"hello, this is text and no audio",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"RIFF\x00\x00\x00\x00AVI ",
    ],
)
def test_bytes_that_are_no_audio_are_refused_with_the_readable_formats(data):
    with pytest.raises(UndecodableAudio, match=r"not audio that can be read .*; send wav, flac, ogg, mp3"):
        decode_audio(data)


@pytest.mark.parametrize("magic", [b"fLaC", b"OggS", b"ID3", b"\xff\xf1", b"RIFF\0\0\0\0WAVE", b"\x1a\x45\xdf\xa3"])
@pytest.mark.parametrize("rest", [b"", bytes(64), b"\xa5" * 5000])
def test_magic_bytes_without_audio_behind_are_refused(magic, rest):
    with pytest.raises(UndecodableAudio):
        decode_audio(magic + rest)


def test_every_cut_of_a_file_is_decoded_or_refused(speech):
    for format in ("flac", "mp3", "opus", "aac", "wav"):
        body = encode_audio(speech(0.2), format, 24000)
        for end in range(0, len(body), max(len(body) // 40, 1)):
            try:
                samples, _ = decode_audio(body[:end])
            except UndecodableAudio:
                continue
            assert np.isfinite(samples).all()


def test_audio_longer_than_the_limit_is_refused_and_up_to_it_accepted(speech):
    body = encode_audio(speech(1.0), "flac", 24000)
    assert len(decode_audio(body, max_seconds=1.0)[0]) == 24000
    with pytest.raises(AudioTooLong, match=r"longer than 0\.9 s"):
        decode_audio(body, max_seconds=0.9)


def test_video_without_sound_is_refused():
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=10, width=16, height=16, pix_fmt="yuv420p")
        out.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")))
        out.mux(stream.encode(None))
    with pytest.raises(UndecodableAudio, match="no audio track"):
        decode_audio(file.getvalue())


def test_samples_that_are_not_finite_are_refused():
    with pytest.raises(UndecodableAudio, match="sample 2 is not a finite number"):
        decode_audio(float_wav([0.0, 0.5, np.nan]))


@pytest.mark.parametrize("rate", [0, 100, 4_000_000])
def test_absurd_sampling_rate_is_refused(rate):
    with pytest.raises(UndecodableAudio):
        decode_audio(float_wav(np.zeros(100), rate))


def test_tags_that_are_not_utf_8_do_not_matter():
    tag = b"INAM" + struct.pack("<I", 4) + b"\xe9t\xe9\x00"
    body = wav(np.zeros(10, np.int16))
    listed = body + b"LIST" + struct.pack("<I", 4 + len(tag)) + b"INFO" + tag
    assert len(decode_audio(listed)[0]) == 10
