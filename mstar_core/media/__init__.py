"""Media in and out of the server: audio, pictures, clips and tensors, between arrays and files. Imports no torch."""

from mstar_core.media.audio import AudioEncoder, encode_audio
from mstar_core.media.decode import AudioTooLong, UndecodableAudio, decode_audio
from mstar_core.media.errors import MediaTooLarge, UnreadableMedia
from mstar_core.media.formats import AUDIO_FORMATS, AudioFormat, UnknownFormat, audio_format
from mstar_core.media.image_formats import IMAGE_FORMATS, ImageFormat, UnencodableImage, encode_image
from mstar_core.media.images import UndecodableImage, decode_image
from mstar_core.media.limits import MediaLimits
from mstar_core.media.tensors import UnreadableTensors
from mstar_core.media.video import UndecodableVideo, decode_video

__all__ = [
    "AUDIO_FORMATS",
    "IMAGE_FORMATS",
    "AudioEncoder",
    "AudioFormat",
    "AudioTooLong",
    "ImageFormat",
    "MediaLimits",
    "MediaTooLarge",
    "UndecodableAudio",
    "UndecodableImage",
    "UndecodableVideo",
    "UnencodableImage",
    "UnknownFormat",
    "UnreadableMedia",
    "UnreadableTensors",
    "audio_format",
    "decode_audio",
    "decode_image",
    "decode_video",
    "encode_audio",
    "encode_image",
]
