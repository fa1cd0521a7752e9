"""The audio formats a client may ask for: their names, media types, file suffixes and first bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mstar_core.errors import nearest

MIN_SAMPLE_RATE = 4_000
"""Lowest sampling rate taken, in Hz; below it the codecs' rate tables (8 kHz and up) make no sense."""

MAX_SAMPLE_RATE = 192_000
"""Highest sampling rate taken, in Hz: the highest in common use, and a bound on what a hostile header can claim."""


class UnknownFormat(ValueError):
    """The named audio format is not one of `AUDIO_FORMATS`.

    `name` is what was asked for, `choices` the valid names; the HTTP server answers 400 with both.
    """

    def __init__(self, name: str, choices: tuple[str, ...]) -> None:
        self.name = name
        self.choices = choices
        super().__init__(f"unknown audio format {name!r}{nearest(name, choices)}; the formats are {', '.join(choices)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFormat:
    """One audio format, as `response_format` names it and as the HTTP response declares it."""

    name: str
    media_type: str
    """For Content-Type, without parameters."""
    suffix: str
    """File name suffix with its dot."""
    magic: bytes
    """What every body of this format starts with; empty for headerless pcm."""


# The names are those of OpenAI's `response_format`, and so are the media types but for opus: `audio/opus` is the type
# of RTP payloads (RFC 7587), a file of Opus in Ogg is `audio/ogg` (RFC 7845, section 9), which browsers know.
AUDIO_FORMATS: Mapping[str, AudioFormat] = MappingProxyType(
    {
        format.name: format
        for format in (
            AudioFormat(name="wav", media_type="audio/wav", suffix=".wav", magic=b"RIFF"),
            # Mono signed 16-bit little-endian samples and nothing else: the rate must travel beside the body.
            AudioFormat(name="pcm", media_type="audio/pcm", suffix=".pcm", magic=b""),
            AudioFormat(name="flac", media_type="audio/flac", suffix=".flac", magic=b"fLaC"),
            # Our MP3 bodies open with an (empty) ID3v2 tag, which every sniffer knows.
            AudioFormat(name="mp3", media_type="audio/mpeg", suffix=".mp3", magic=b"ID3"),
            AudioFormat(name="opus", media_type="audio/ogg", suffix=".opus", magic=b"OggS"),
            # ADTS: 12 bits of sync word, MPEG-4, layer 0, no checksum.
            AudioFormat(name="aac", media_type="audio/aac", suffix=".aac", magic=b"\xff\xf1"),
        )
    }
)


def audio_format(name: str) -> AudioFormat:
    """The format of this exact name; raises `UnknownFormat`."""
    try:
        return AUDIO_FORMATS[name]
    except KeyError:
        raise UnknownFormat(name, tuple(AUDIO_FORMATS)) from None


def check_sample_rate(sample_rate: int) -> None:
    """Raise `ValueError` unless the rate lies in `MIN_SAMPLE_RATE`..`MAX_SAMPLE_RATE` Hz."""
    if not MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE:
        raise ValueError(f"sampling rate {sample_rate} Hz is outside {MIN_SAMPLE_RATE}..{MAX_SAMPLE_RATE} Hz")
