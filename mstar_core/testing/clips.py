"""Clips, pictures and their files, made on the spot, for tests of what takes them."""

from __future__ import annotations

import io

import av
import numpy as np
import PIL.Image
from numpy.typing import NDArray

CODECS = {"mp4": "mpeg4", "mov": "mpeg4", "webm": "libvpx", "matroska": "mpeg4"}
"""A codec of each container."""


def moving(frames: int = 6, height: int = 32, width: int = 48) -> NDArray[np.uint8]:
    """uint8 [frames, height, width, 3]: red in the upper left quarter, and blue that grows by 20 with every frame."""
    clip = np.zeros((frames, height, width, 3), np.uint8)
    clip[:, : height // 2, : width // 2, 0] = 255
    clip[..., 2] = 20 * np.arange(frames, dtype=np.uint8)[:, None, None]
    return clip


def clip_file(frames: NDArray[np.uint8], container: str = "mp4", *, rate: int = 10, sound_rate: int = 0) -> bytes:
    """The frames as a file; with `sound_rate`, in Hz, a second of silence beside them."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        _, height, width, _ = frames.shape
        pictures = out.add_stream(CODECS[container], rate=rate, width=width, height=height, pix_fmt="yuv420p")
        assert isinstance(pictures, av.VideoStream)
        pictures.bit_rate = 4_000_000
        sound = out.add_stream("aac", rate=sound_rate, layout="mono") if sound_rate else None
        for frame in frames:
            out.mux(pictures.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        out.mux(pictures.encode(None))
        if sound is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, sound_rate), np.float32), format="fltp", layout="mono")
            silence.sample_rate = sound_rate
            out.mux(sound.encode(silence))
            out.mux(sound.encode(None))
    return file.getvalue()


def image_file(pixels: NDArray[np.uint8], format: str = "png") -> bytes:
    """A picture of uint8 [height, width, 3] as a file."""
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, format)
    return file.getvalue()
