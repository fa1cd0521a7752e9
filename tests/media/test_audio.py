import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar_core.media import AUDIO_FORMATS, AudioEncoder, UnknownFormat, decode_audio, encode_audio
from mstar_core.media.pcm import wav_header

FORMATS = tuple(AUDIO_FORMATS)
LOSSY = ("mp3", "opus", "aac")
TOLERANCE = 0.060  # seconds between a decoded body and the pcm


def parts(samples, format, rate=24000, speed=1.0, chunk=2048, streaming=True):
    """What each call returned, the last one being `finish`."""
    with AudioEncoder(format, rate, speed, streaming) as encoder:
        sent = [encoder.encode(samples[start : start + chunk]) for start in range(0, len(samples), chunk)]
        return [*sent, encoder.finish()]


def stream(samples, format, rate=24000, speed=1.0, chunk=2048):
    return b"".join(parts(samples, format, rate, speed, chunk))


def pcm(samples):
    return (np.clip(samples, -1, 1) * np.float32(32767)).astype("<i2")


def test_pcm_is_the_product_with_32767_truncated_toward_zero_and_clamped():
    samples = np.array([0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -7.0, 0.99999], np.float32)
    expected = [0, 16383, -16383, 32767, -32767, 32767, -32767, 32766]
    assert np.frombuffer(encode_audio(samples, "pcm", 24000), "<i2").tolist() == expected


@pytest.mark.parametrize("format", ["pcm", "wav", "flac"])
@given(cuts=st.lists(st.integers(0, 500), max_size=12), speed=st.sampled_from([1.0, 0.7]))
@settings(max_examples=12, deadline=None)
def test_lossless_stream_when_cut_anywhere_then_same_samples(format, cuts, speed):
    samples = np.sin(np.arange(500) * 0.05).astype(np.float32)
    with AudioEncoder(format, 8000, speed) as encoder:
        chunks = np.split(samples, sorted(cuts))
        body = b"".join([encoder.encode(chunk) for chunk in chunks]) + encoder.finish()
    whole = np.frombuffer(encode_audio(samples, "pcm", 8000, speed), "<i2")
    decoded = np.frombuffer(body, "<i2") if format == "pcm" else decode_audio(body)[0] * 32768
    assert np.array_equal(decoded, whole)


@pytest.mark.parametrize("rate", [8000, 24000, 44100])
@pytest.mark.parametrize("format", FORMATS)
def test_stream_when_cut_into_single_samples_then_same_bytes(format, rate, speech):
    samples = speech(0.05, rate)
    assert stream(samples, format, rate, chunk=1) == stream(samples, format, rate, chunk=10**6)


@pytest.mark.parametrize("format", ["pcm", "opus", "aac"])
@pytest.mark.parametrize("speed", [1.0, 1.3])
def test_stream_of_format_without_length_in_header_equals_whole_body(format, speed, speech):
    samples = speech(0.7)
    assert stream(samples, format, speed=speed) == encode_audio(samples, format, 24000, speed)


def test_wav_stream_has_one_header_and_the_pcm(speech, wav_payload):
    samples = speech(1.0)
    body = stream(samples, "wav")
    assert (body.count(b"RIFF"), body.count(b"data")) == (1, 1)
    assert wav_payload(body) == pcm(samples).tobytes()
    assert struct.unpack_from("<I", body, 4) == struct.unpack_from("<I", body, 40) == (0xFFFFFFFF,)


def test_wav_when_whole_then_sizes_are_right(speech, wav_payload):
    body = encode_audio(speech(0.5), "wav", 24000)
    assert struct.unpack_from("<I", body, 4) == (len(body) - 8,)
    assert struct.unpack_from("<I", body, 40) == (len(body) - 44,)
    assert wav_payload(body) == encode_audio(speech(0.5), "pcm", 24000)


def test_wav_of_more_than_4_gib_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"do not fit a WAV file .*ask for flac or a stream"):
        wav_header(24000, 2**32)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("rate", [8000, 22050, 24000, 44100, 96000])
def test_flac_is_the_pcm_sample_for_sample(rate, streaming, speech):
    samples = speech(0.7, rate)
    decoded, decoded_rate = decode_audio(b"".join(parts(samples, "flac", rate, streaming=streaming)))
    assert decoded_rate == rate
    assert np.array_equal(decoded * 32768, pcm(samples))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000, 96000])
@pytest.mark.parametrize("format", FORMATS)
def test_body_decodes_in_one_pass_to_the_length_of_the_pcm(format, rate, streaming, speech, seconds):
    for length in (0.31, 0.337):
        body = b"".join(parts(speech(length, rate), format, rate, streaming=streaming))
        assert seconds(body, format, rate) == pytest.approx(length, abs=TOLERANCE)


@pytest.mark.parametrize("format", ["wav", "flac", "opus"])
def test_stream_of_format_that_says_its_length_is_exact(format, speech, seconds):
    samples = speech(1.2345)
    assert seconds(stream(samples, format), format, 24000) == pytest.approx(len(samples) / 24000, abs=1e-4)


def test_mp3_when_whole_then_length_is_exact(speech, seconds):
    samples = speech(1.2345)
    assert seconds(encode_audio(samples, "mp3", 24000), "mp3", 24000) == pytest.approx(len(samples) / 24000, abs=1e-4)


@pytest.mark.parametrize("format", LOSSY)
def test_lossy_body_sounds_like_the_samples(format, speech):
    samples = speech(1.0, 48000)
    decoded, rate = decode_audio(encode_audio(samples, format, 48000))
    decoded = np.concatenate([decoded, np.zeros(max(48000 - len(decoded), 0), np.float32)])
    lag = int(np.argmax([np.dot(decoded[lag : lag + 40000], samples[:40000]) for lag in range(2000)]))
    assert rate == 48000
    assert lag / 48000 < TOLERANCE
    assert np.corrcoef(decoded[lag : lag + 40000], samples[:40000])[0, 1] > 0.97


@pytest.mark.parametrize("format", LOSSY)
def test_lossy_tail_is_not_lost(format, speech):
    samples = speech(0.5, 48000)
    samples[:-1000] = 0.0
    decoded, _ = decode_audio(stream(samples, format, 48000))
    assert np.abs(decoded).max() > 0.5 * np.abs(samples).max()


@pytest.mark.parametrize("format", FORMATS)
def test_stream_in_chunks_of_85_ms_then_most_bytes_come_before_finish(format, speech):
    sent = parts(speech(5.0), format, chunk=2048)
    sizes = [len(part) for part in sent]
    assert sum(sizes[:-1]) > 0.9 * sum(sizes)
    assert sum(map(bool, sizes[:-1])) > 0.9 * (len(sizes) - 1)


@pytest.mark.parametrize("format", FORMATS)
def test_stream_then_first_bytes_come_within_two_chunks(format, speech):
    assert any(parts(speech(1.0), format, chunk=2048)[:2])


@pytest.mark.parametrize("format", FORMATS)
def test_whole_body_when_not_streaming_comes_from_finish_alone(format, speech):
    *before, body = parts(speech(0.5), format, streaming=False)
    assert not any(before)
    assert len(body) > 1000


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("rate", [8000, 24000, 44100])
@pytest.mark.parametrize("count", [0, 1, 50])
@pytest.mark.parametrize("format", FORMATS)
def test_tiny_audio_gives_a_valid_file(format, count, rate, streaming):
    with AudioEncoder(format, rate, streaming=streaming) as encoder:
        body = encoder.encode(np.zeros(count, np.float32)) + encoder.finish()
    if format == "pcm":
        assert len(body) == 2 * count
        return
    decoded, decoded_rate = decode_audio(body)
    assert len(decoded) / decoded_rate == pytest.approx(count / rate, abs=TOLERANCE)


@pytest.mark.parametrize("format", FORMATS)
def test_same_audio_encoded_again_and_in_parallel_gives_the_same_bytes(format, speech):
    samples = speech(0.5, 44100)
    with ThreadPoolExecutor(4) as pool:
        bodies = list(pool.map(lambda _: stream(samples, format, 44100, 0.9), range(8)))
    assert set(bodies) == {bodies[0]}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_sample_that_is_not_finite_is_an_error_that_names_its_position(bad):
    encoder = AudioEncoder("pcm", 24000)
    encoder.encode(np.zeros(100, np.float32))
    with pytest.raises(ValueError, match=r"sample 107 is -?(nan|inf)"):
        encoder.encode(np.array([0.0] * 7 + [bad], np.float32))
    assert encoder.encode(np.full(1, 0.5, np.float32)) == b"\xff\x3f"


@pytest.mark.parametrize("samples", [np.zeros(4), np.zeros((2, 4), np.float32), np.zeros(4, np.int16)])
def test_samples_of_another_dtype_or_shape_are_refused(samples):
    with pytest.raises(ValueError, match=r"float32 of shape \[samples\], not"):
        AudioEncoder("wav", 24000).encode(samples)


@pytest.mark.parametrize("rate", [0, -1, 3999, 192001])
def test_sample_rate_out_of_range_is_refused(rate):
    with pytest.raises(ValueError, match=r"outside 4000\.\.192000"):
        AudioEncoder("wav", rate)


@pytest.mark.parametrize("speed", [0.0, 0.2, 4.1, -1.0, float("nan"), float("inf")])
def test_speed_out_of_range_is_refused(speed):
    with pytest.raises(ValueError, match=r"speed .* is outside 0\.25\.\.4\.0"):
        AudioEncoder("wav", 24000, speed)


def test_encoder_of_unknown_format_is_refused():
    with pytest.raises(UnknownFormat, match="ogg"):
        AudioEncoder("ogg", 24000)


@pytest.mark.parametrize("format", FORMATS)
def test_encoder_when_closed_midway_then_refuses_more_and_close_is_idempotent(format, speech):
    encoder = AudioEncoder(format, 24000)
    encoder.encode(speech(0.2))
    encoder.close()
    encoder.close()
    with pytest.raises(ValueError, match="finished or closed"):
        encoder.encode(speech(0.1))
    with pytest.raises(ValueError, match="finished or closed"):
        encoder.finish()
