import io
import struct

import av
import numpy as np
import PIL.Image
import pytest

from mstar_core.media import MediaLimits, MediaTooLarge, UndecodableVideo, decode_video
from mstar_core.media.picking import picked
from mstar_core.testing.clips import CODECS, clip_file, image_file, moving

CONTAINERS = list(CODECS)


def animation(frames, format="gif", **options):
    first, *rest = [PIL.Image.fromarray(frame) for frame in frames]
    file = io.BytesIO()
    first.save(file, format, save_all=True, append_images=rest, **options)
    return file.getvalue()


def near(frames, wanted):
    return np.abs(frames.astype(int) - wanted).mean() < 6


@pytest.mark.parametrize("container", CONTAINERS)
def test_clip_is_its_frames_at_its_rate(container):
    wanted = moving()
    video = decode_video(clip_file(wanted, container))
    assert (video.frames.dtype, video.frames.shape, video.rate, video.audio) == (np.uint8, wanted.shape, 10.0, None)
    assert near(video.frames, wanted)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(("most", "numbers"), [(1, [0]), (2, [0, 5]), (3, [0, 3, 5]), (6, range(6)), (99, range(6))])
def test_at_most_so_many_frames_are_kept_at_equal_distances(container, most, numbers):
    wanted = moving()[list(numbers)]
    video = decode_video(clip_file(moving(), container), most=most)
    assert video.frames.shape == wanted.shape
    assert near(video.frames, wanted)


def test_rate_of_picked_frames_is_theirs():
    data = clip_file(moving(11))
    assert [round(decode_video(data, most=most).rate, 3) for most in (1, 2, 6, 11)] == [0.909, 1.0, 5.0, 10.0]


@pytest.mark.parametrize(("count", "most"), [(1, 1), (7, 3), (100, 16), (5, None), (3, 9)])
def test_picked_frames_ascend_from_the_first_to_the_last(count, most):
    chosen = list(picked(count, most))
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(count, most or count)
    assert (chosen[0], chosen[-1]) == (0, count - 1 if len(chosen) > 1 else 0)


def test_sound_comes_along_unless_it_is_not_wanted():
    data = clip_file(moving(), sound_rate=16_000)
    audio = decode_video(data).audio
    assert audio.rate == 16_000
    assert len(audio.samples) == pytest.approx(16_000, abs=2048)
    assert decode_video(data, sound=False).audio is None


QUARTERS = {  # of the clip as coded: upper left, upper right, lower left, lower right
    "as coded": ((1, 0, 0, 1), 0),
    "clockwise": ((0, 1, -1, 0), 1),
    "half": ((-1, 0, 0, -1), 3),
    "counter-clockwise": ((0, -1, 1, 0), 2),
    "mirrored": ((-1, 0, 0, 1), 1),
    "upside down": ((1, 0, 0, -1), 2),
    "transposed": ((0, 1, 1, 0), 0),
}


@pytest.mark.parametrize(("matrix", "quarter"), QUARTERS.values(), ids=QUARTERS)
def test_display_matrix_is_honoured(matrix, quarter):
    data = clip_file(moving(2))
    plain = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    at = data.index(plain, data.index(b"tkhd"))
    a, b, c, d = (each << 16 for each in matrix)
    turned = data[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + data[at + 36 :]
    frame = decode_video(turned).frames[0]
    assert frame.shape == ((32, 48, 3) if matrix[0] else (48, 32, 3))
    height, width = frame.shape[0] // 2, frame.shape[1] // 2
    red = [frame[y : y + height, x : x + width, 0].mean() for y in (0, height) for x in (0, width)]
    assert int(np.argmax(red)) == quarter
    assert sorted(red)[-2] < 40


def test_old_quicktime_file_without_ftyp_is_read():
    data = clip_file(moving(), "mov")
    size = int.from_bytes(data[:4], "big")
    assert data[4:8] == b"ftyp"
    # What stood behind the box moves up, and the offsets of the samples with it.
    body = bytearray(data[size:])
    at = body.index(b"stco") + 12
    body[at : at + 4] = (int.from_bytes(body[at : at + 4], "big") - size).to_bytes(4, "big")
    assert decode_video(bytes(body)).frames.shape == (6, 32, 48, 3)


@pytest.mark.parametrize("format", ["gif", "webp", "png"])
def test_animated_picture_is_a_clip(format):
    wanted = moving()
    options = {"lossless": True} if format == "webp" else {}
    video = decode_video(animation(wanted, format, duration=50, **options))
    assert video.rate == pytest.approx(20)
    assert near(video.frames, wanted)
    fewer = decode_video(animation(wanted, format, duration=50, **options), most=2)
    assert fewer.rate == pytest.approx(4)
    assert near(fewer.frames, wanted[[0, 5]])


def test_animation_without_times_has_ten_frames_a_second():
    assert decode_video(animation(moving())).rate == pytest.approx(10)


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "gif"])
def test_picture_that_stands_still_is_a_clip_of_one_frame(format):
    video = decode_video(image_file(moving(1)[0], format))
    assert (video.frames.shape, video.rate) == ((1, 32, 48, 3), 1.0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"this is text named .mp4, for certain",
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"RIFF\0\0\0\0WAVE" + bytes(50),
        b"fLaC" + bytes(50),
    ],
)
def test_bytes_that_are_no_clip_are_refused_with_the_readable_formats(data):
    with pytest.raises(UndecodableVideo, match=r"not a video that can be read \(.*\); send mp4, mov, webm, mkv"):
        decode_video(data)


@pytest.mark.parametrize(
    "magic", [b"\0\0\0\x14ftypqt  ", b"\x1a\x45\xdf\xa3", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"]
)
@pytest.mark.parametrize("rest", [b"", bytes(64), b"\xa5" * 5000])
def test_magic_bytes_without_a_clip_behind_are_refused(magic, rest):
    with pytest.raises(UndecodableVideo):
        decode_video(magic + rest)


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_cut_of_a_clip_is_refused_or_was_behind_the_clip(container):
    whole = clip_file(moving(), container)
    refused = 0
    for end in range(0, len(whole), max(len(whole) // 50, 1)):
        try:
            assert len(decode_video(whole[:end]).frames) == 6
        except UndecodableVideo:
            refused += 1
    assert refused > 40


def test_clip_that_was_streamed_and_claims_no_length_is_read():
    data = bytearray(clip_file(moving(), "webm"))
    at = data.index(b"\x18\x53\x80\x67") + 4
    data[at : at + 8] = b"\x01" + b"\xff" * 7
    assert len(decode_video(bytes(data)).frames) == 6


def test_damaged_bytes_are_a_clip_or_refused():
    whole = clip_file(moving(12, 64, 64))
    random = np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(whole)
        for at in random.integers(0, len(data), 20):
            data[at] ^= int(random.integers(1, 256))
        try:
            video = decode_video(bytes(data), limits=MediaLimits(decoded_bytes=2**24, frame_pixels=2**16))
        except (UndecodableVideo, MediaTooLarge):
            continue
        assert video.frames.ndim == 4


def test_clip_whose_index_comes_first_and_whose_last_frames_are_missing_is_refused(tmp_path):
    with av.open(str(tmp_path / "clip.mp4"), "w", options={"movflags": "faststart"}) as out:
        stream = out.add_stream("mpeg4", rate=10, width=48, height=32, pix_fmt="yuv420p")
        for frame in moving():
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        out.mux(stream.encode(None))
    data = (tmp_path / "clip.mp4").read_bytes()
    assert len(decode_video(data).frames) == 6
    for missing in (1, 40, 200):
        with pytest.raises(UndecodableVideo, match="cut short"):
            decode_video(data[:-missing])


LIMITED = {
    "file_bytes": (100, r"the file has \d+ bytes; at most 100 are taken"),
    "frame_pixels": (1000, r"a frame has 48 x 32 = 1536 pixels; at most 1000 are taken"),
    "frames": (5, r"more than 5 frames, which is the limit; send a shorter or smaller clip"),
    "seconds": (1, r"the clip lasts 2\.0 s or more; at most 1 s are taken"),
    "decoded_bytes": (30_000, r"7 frames or more of 48 x 32 pixels take 32256 bytes; at most 30000"),
    "scanned_pixels": (10_000, r"has 7 frames or more of 48 x 32 pixels; at most 10000 pixels in all are decoded"),
}


@pytest.mark.parametrize(("name", "limit", "told"), [(name, *case) for name, case in LIMITED.items()])
def test_clip_over_a_limit_is_refused_with_the_numbers(name, limit, told):
    data = clip_file(moving(20))
    decode_video(data)
    with pytest.raises(MediaTooLarge, match=told):
        decode_video(data, limits=MediaLimits(**{name: limit}))


@pytest.mark.parametrize("name", ["frame_pixels", "frames", "seconds", "decoded_bytes", "scanned_pixels"])
def test_animation_over_a_limit_is_refused(name):
    with pytest.raises(MediaTooLarge):
        decode_video(animation(moving(20)), limits=MediaLimits(**{name: LIMITED[name][0]}))


def test_few_frames_of_a_clip_too_large_to_hold_are_taken():
    data = clip_file(moving(20))
    video = decode_video(data, most=2, limits=MediaLimits(frames=2, decoded_bytes=2 * 48 * 32 * 3))
    assert len(video.frames) == 2


@pytest.mark.parametrize("name", LIMITED)
def test_limit_below_one_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        MediaLimits(**{name: 0})
