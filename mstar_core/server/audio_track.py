"""The audio of one request as one body of a format, while it is being made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

from mstar_core.media import AUDIO_FORMATS, AudioEncoder
from mstar_core.server.tickets import in_thread
from mstar_core.spec.content import Audio, Piece

_SILENT_RATE = 24_000
"""The rate, in Hz, of a body without samples: that of OpenAI's pcm."""


class AudioTrack:
    """Encodes the pieces of audio that a request gives; `rate` (Hz) is that of the first. Codecs work in threads.

    Used by one coroutine, one call at a time.
    """

    def __init__(self, format: str, *, speed: float = 1.0, streaming: bool) -> None:
        self.format = AUDIO_FORMATS[format]
        self.rate = _SILENT_RATE
        self._speed = speed
        self._streaming = streaming
        self._encoder: AudioEncoder | None = None

    @property
    def started(self) -> bool:
        """Whether any audio came."""
        return self._encoder is not None

    async def push(self, audio: Audio) -> bytes:
        """Take a piece; return what can be sent now, maybe b"". Raises `ValueError` for another sampling rate."""
        if not self.started:
            self.rate = audio.rate
        if audio.rate != self.rate:
            raise ValueError(f"the model's sampling rate changed from {self.rate} to {audio.rate} Hz within a request")
        return await in_thread(self._opened().encode, audio.samples)

    async def finish(self) -> bytes:
        """The rest of the body: a whole one, without samples, if no audio came."""
        return await in_thread(self._opened().finish)

    async def encoded(self, contents: AsyncIterable[Piece]) -> AsyncGenerator[bytes, None]:
        """The body of all audio in `contents`, in pieces of which none is empty."""
        try:
            async for content in contents:
                if isinstance(content, Audio) and (piece := await self.push(content)):
                    yield piece
            if piece := await self.finish():
                yield piece
        finally:
            self.close()

    def close(self) -> None:
        """Free the codec; idempotent."""
        if self._encoder:
            self._encoder.close()

    def _opened(self) -> AudioEncoder:
        if self._encoder is None:
            self._encoder = AudioEncoder(self.format.name, self.rate, self._speed, self._streaming)
        return self._encoder
