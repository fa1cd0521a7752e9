"""Media in and out of the server: audio between float samples and the formats clients speak. Imports no torch."""

from mstar_core.media.audio import AudioEncoder, encode_audio
from mstar_core.media.decode import AudioTooLong, UndecodableAudio, decode_audio
from mstar_core.media.formats import AUDIO_FORMATS, AudioFormat, UnknownFormat, audio_format

__all__ = [
    "AUDIO_FORMATS",
    "AudioEncoder",
    "AudioFormat",
    "AudioTooLong",
    "UndecodableAudio",
    "UnknownFormat",
    "audio_format",
    "decode_audio",
    "encode_audio",
]
