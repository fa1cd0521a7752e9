"""How large, and how many, pictures and clips from clients may be, checked before and while they are decoded."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mstar_core.media.errors import MediaTooLarge


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """Bounds on one picture or clip; the server's are in its settings. One below 1 raises `ValueError`.

    `file_bytes` and `frame_pixels` are known before anything is decoded, `frames`, `seconds` and the rest at the latest
    before the frame that breaks them is kept. Those of the class are the defaults of every face.
    """

    file_bytes: int = 256 * 2**20
    frame_pixels: int = 2**26
    """Width times height: 64 Mpx, an 8K frame (33 Mpx) and the pictures of today's phones (50 Mpx)."""
    frames: int = 2048
    """Frames that are kept."""
    seconds: float = 600.0
    decoded_bytes: int = 2**30
    """What the kept frames take in memory, 3 bytes a pixel."""
    scanned_pixels: int = 2**36
    """Pixels that are decoded at all, for a few frames of a long clip: 33,000 frames of 1920 x 1080."""
    media: int = 32
    """Pictures, clips and sounds in one request, which all together also keep to `decoded_bytes`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1, got {getattr(self, field.name)}")

    def check_file(self, data: bytes) -> None:
        """Raise `MediaTooLarge` for a file of too many bytes."""
        if len(data) > self.file_bytes:
            raise MediaTooLarge(f"the file has {len(data)} bytes; at most {self.file_bytes} are taken")

    def check_frame(self, width: int, height: int) -> None:
        """Raise `MediaTooLarge` for a frame of too many pixels."""
        if width * height > self.frame_pixels:
            pixels = f"{width} x {height} = {width * height} pixels"
            raise MediaTooLarge(f"a frame has {pixels}; at most {self.frame_pixels} are taken")

    def check_kept(self, frames: int, width: int, height: int) -> None:
        """Raise `MediaTooLarge` when so many frames are too many, or take too much memory."""
        if frames > self.frames:
            raise MediaTooLarge(f"the clip has more than {self.frames} frames, which is the limit; {_FEWER}")
        taken = 3 * frames * width * height
        if taken > self.decoded_bytes:
            size = f"{frames} frames or more of {width} x {height} pixels take {taken} bytes"
            raise MediaTooLarge(f"{size}; at most {self.decoded_bytes} are taken; {_FEWER}")

    def check_together(self, taken: int) -> None:
        """Raise `MediaTooLarge` when the media of a request take too much memory."""
        if taken > self.decoded_bytes:
            raise MediaTooLarge(f"the media up to this one take {taken} bytes; at most {self.decoded_bytes} are taken")

    def check_scanned(self, frames: int, width: int, height: int) -> None:
        """Raise `MediaTooLarge` when to decode so many frames is too much work."""
        if frames * width * height > self.scanned_pixels:
            size = f"{frames} frames or more of {width} x {height} pixels"
            raise MediaTooLarge(f"the clip has {size}; at most {self.scanned_pixels} pixels in all are decoded")

    def check_seconds(self, seconds: float) -> None:
        """Raise `MediaTooLarge` for a clip that lasts too long."""
        if seconds > self.seconds:
            raise MediaTooLarge(f"the clip lasts {seconds:.1f} s or more; at most {self.seconds:g} s are taken")


_FEWER = "send a shorter or smaller clip, or ask for fewer of its frames"

DEFAULT_LIMITS = MediaLimits()
