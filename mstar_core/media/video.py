"""Clips from clients to RGB frames: mp4, mov, webm and mkv by PyAV, animated pictures by Pillow."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from numpy.typing import NDArray

from mstar_core.media.decode import AudioTooLong, UndecodableAudio, decode_audio
from mstar_core.media.errors import MediaTooLarge, UnreadableMedia
from mstar_core.media.images import UndecodableImage, decode_animation
from mstar_core.media.limits import DEFAULT_LIMITS, MediaLimits
from mstar_core.media.matroska import missing_bytes
from mstar_core.media.picking import picked, thinned
from mstar_core.media.sniff import IMAGES, first_bytes, kind_of
from mstar_core.spec.content import Audio, Video

_READABLE = "mp4, mov, webm, mkv, or an animated gif, webp or png"


class UndecodableVideo(UnreadableMedia):
    """The bytes are not a clip that can be read; the message says what they are. A client's mistake: 400."""


def decode_video(
    data: bytes, *, limits: MediaLimits = DEFAULT_LIMITS, most: int | None = None, sound: bool = True
) -> Video:
    """Decode the first picture track of a file, turned as its rotation says, and its first audio track.

    With `most`, at most so many frames are kept, at equal distances, the first and the last among them: the clip is
    then decoded twice, and never held whole; `rate` is that of the frames kept. Pixels are taken as square. Without
    `sound` an audio track is not looked at. A picture that stands still is a clip of one frame. Raises
    `UndecodableVideo` for bytes that are no readable clip, have no frame, or are cut or damaged where the decoder
    notices, and `MediaTooLarge`. Frontend only.
    """
    limits.check_file(data)
    kind = kind_of(data)
    if kind in IMAGES:
        return _animation(data, limits, most)
    if kind not in ("mov", "matroska"):
        raise UndecodableVideo(f"the bytes are not a video that can be read ({first_bytes(data)}); send {_READABLE}")
    if kind == "matroska" and (missing := missing_bytes(data)):
        raise UndecodableVideo(f"the data is cut short: {missing} bytes are missing")
    try:
        clip = _Clip(data, kind, limits)
        frames, rate = clip.all() if most is None else clip.some(most)
        return Video(frames, rate, clip.sound() if sound else None)
    except av.FFmpegError as error:
        raise UndecodableVideo(f"the {kind} data cannot be decoded: {error.strerror}") from error


def _animation(data: bytes, limits: MediaLimits, most: int | None) -> Video:
    try:
        return Video(*decode_animation(data, limits=limits, most=most))
    except UndecodableImage as error:
        raise UndecodableVideo(str(error)) from error


@dataclass(slots=True)
class _Clip:
    """One file; each pass over it opens it anew."""

    data: bytes
    kind: str
    limits: MediaLimits

    def all(self) -> tuple[NDArray[np.uint8], float]:
        """Every frame, and the rate."""
        kept: list[NDArray[np.uint8]] = []
        times: list[float | None] = []
        with self._open() as container:
            track = _picture_track(container)
            for frame in self._frames(container, track):
                self.limits.check_kept(len(kept) + 1, frame.width, frame.height)
                times.append(frame.time)
                kept.append(_upright(frame))
            return _stacked(kept), _rate(track, times)

    def some(self, most: int) -> tuple[NDArray[np.uint8], float]:
        """At most so many frames, and their rate."""
        with self._open() as container:
            track = _picture_track(container)
            times = [frame.time for frame in self._frames(container, track)]
            rate = _rate(track, times)
        chosen = picked(len(times), most)
        with self._open() as container:
            frames = self._frames(container, _picture_track(container))
            kept = [_upright(frame) for frame in _at(frames, chosen, self.limits)]
        return _stacked(kept), thinned(rate, len(times), len(chosen))

    def sound(self) -> Audio | None:
        """The audio track, if there is one."""
        with self._open() as container:
            if not container.streams.audio:
                return None
        try:
            return Audio(*decode_audio(self.data, max_seconds=self.limits.seconds))
        except UndecodableAudio as error:
            raise UndecodableVideo(f"its sound: {error}") from error
        except AudioTooLong as error:
            raise MediaTooLarge(f"its sound: {error}") from error

    def _open(self) -> InputContainer:
        # The demuxer is chosen here, as for audio: none that opens other files or addresses is ever used.
        return av.open(io.BytesIO(self.data), "r", format=self.kind, metadata_errors="replace")

    def _frames(self, container: InputContainer, track: av.VideoStream) -> Iterator[av.VideoFrame]:
        """Decoded frames in the order in which they are shown, while the limits hold."""
        self.limits.check_frame(track.codec_context.width, track.codec_context.height)
        if container.duration is not None:
            self.limits.check_seconds(container.duration / av.time_base)
        size = first = None
        for number, frame in enumerate(_decoded(container, track), 1):
            size = size or (frame.width, frame.height)
            if (frame.width, frame.height) != size:
                found = f"{frame.width} x {frame.height}"
                raise UndecodableVideo(f"the frames change their size from {size[0]} x {size[1]} to {found}")
            self.limits.check_frame(*size)
            self.limits.check_scanned(number, *size)
            first = frame.time if first is None else first
            self.limits.check_seconds((frame.time or 0.0) - (first or 0.0))
            yield frame
        if size is None:
            raise UndecodableVideo("the file has no frame")


def _picture_track(container: InputContainer) -> av.VideoStream:
    """The first track of moving pictures; covers of albums are not."""
    covers = av.stream.Disposition.attached_pic
    track = next((each for each in container.streams.video if not each.disposition & covers), None)
    if track is None:
        raise UndecodableVideo("the file has no picture track")
    if track.codec_context is None:
        raise UndecodableVideo("the file's picture track uses a codec that is not known here")
    track.codec_context.thread_count = 1
    return track


def _decoded(container: InputContainer, track: av.VideoStream) -> Iterator[av.VideoFrame]:
    packets = 0
    for packet in container.demux(track):
        packets += packet.size > 0
        if packet.is_corrupt:
            raise UndecodableVideo(f"the data is cut short or damaged at frame {packets}")
        for frame in packet.decode():
            assert isinstance(frame, av.VideoFrame)
            if frame.is_corrupt:
                raise UndecodableVideo(f"the data is damaged near frame {packets}")
            yield frame
    if packets < track.frames:  # what the file says of itself; 0 where it says nothing
        raise UndecodableVideo(f"the data is cut short: {packets} frames are there of {track.frames}")


def _at(frames: Iterator[av.VideoFrame], chosen: Sequence[int], limits: MediaLimits) -> Iterator[av.VideoFrame]:
    """The frames of the chosen numbers, which ascend."""
    before = -1
    for number in chosen:
        frame = next(itertools.islice(frames, number - before - 1, None))
        limits.check_kept(len(chosen), frame.width, frame.height)
        before = number
        yield frame


def _rate(track: av.VideoStream, times: Sequence[float | None]) -> float:
    """Frames a second: what the file says, else by the times of the first and the last frame, else 1."""
    if track.average_rate:
        return float(track.average_rate)
    first, last = times[0], times[-1]
    return (len(times) - 1) / (last - first) if first is not None and last is not None and last > first else 1.0


def _stacked(kept: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """uint8 [frames, height, width, 3], while the list is given up: both are never whole at once."""
    whole = np.empty((len(kept), *kept[0].shape), np.uint8)
    kept.reverse()
    for index in range(len(whole)):
        whole[index] = kept.pop()
    return whole


def _upright(frame: av.VideoFrame) -> NDArray[np.uint8]:
    """uint8 [height, width, 3] as a player shows it: alpha on white, turned by the frame's display matrix."""
    if any(component.is_alpha for component in frame.format.components):
        rgba = frame.to_ndarray(format="rgba").astype(np.uint16)  # [height, width, 4]
        alpha = rgba[..., 3:]
        pixels = ((rgba[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    else:
        pixels = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    return pixels if matrix is None else _turned(pixels, np.frombuffer(matrix, np.int32).tolist())


def _turned(pixels: NDArray[np.uint8], matrix: Sequence[int]) -> NDArray[np.uint8]:
    """Turned and mirrored as the upper left of a 3 x 3 display matrix says: x' = a x + c y, y' = b x + d y.

    (ISO/IEC 14496-12, section 6.2.2.) Quarter turns only, which is what cameras write; angles between are rounded.
    """
    a, b, c, d = matrix[0], matrix[1], matrix[3], matrix[4]
    across, down = (a, d) if abs(a) >= abs(b) else (c, b)
    if abs(a) < abs(b):
        pixels = pixels.swapaxes(0, 1)
    return np.ascontiguousarray(pixels[:: -1 if down < 0 else 1, :: -1 if across < 0 else 1])
